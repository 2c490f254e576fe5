// a click on a heading sorts the members by it, a second one turns the order; without this the
// table stands in its own order
const body = document.querySelector("#decision tbody.trained");
const rows = body ? [...body.rows] : [];
const heads = [...document.querySelectorAll("#decision thead th")];
const value = (row, column) => {
  const cell = row.cells[column];
  if (column === 0) return cell.textContent;
  return cell.dataset.value === undefined ? cell.firstChild.textContent : Number(cell.dataset.value);
};
heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const turned = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turned > 0 ? "ascending" : "descending");
    body.append(...[...rows].sort((one, other) => {
      const [a, b] = [value(one, column), value(other, column)];
      // what is not known stands last in both orders
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return turned * ((a > b) - (a < b));
    }));
  });
});
if (document.querySelector(".filter")) {
  const find = document.createElement("input");
  find.type = "search";
  find.placeholder = "find a member";
  find.setAttribute("aria-label", find.placeholder);
  document.querySelector("#decision .scroll").before(find);
  find.addEventListener("input", () => {
    const wanted = find.value.toLowerCase();
    for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  });
}
const place = document.querySelector("#decision .scroll");
const hint = document.querySelector("#decision .narrow");
if (hint && place.scrollWidth > place.clientWidth) hint.style.display = "inline";

"""The picture of the README, a page in light and dark: `python docs/picture.py FOLDER`.

Needs Chromium. The one shown is of

    everyformer compare attention rope aft-conv gmlp linear longformer --data stdlib --steps 200 \\
        --seeds 3 --lr 1e-2 --width 64 --layers 2 --length 128 --lengths 256 1024 --out FOLDER
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
SCHEMES = {"dark": 0, "light": 1}
"""as Chromium numbers them"""

for name, number in SCHEMES.items():
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--blink-settings=preferredColorScheme={number}",
            f"--user-data-dir={profile}",
            "--window-size=1280,800",
            f"--screenshot={PICTURES / f'report-{name}.png'}",
            (Path(sys.argv[1]) / "report.html").resolve().as_uri(),
        ]
        subprocess.run(command, check=True, timeout=120, capture_output=True)

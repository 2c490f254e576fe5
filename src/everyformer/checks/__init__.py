"""The laws: what every member must keep, checked in CI and on a user's own hardware."""

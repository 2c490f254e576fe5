"""The main job: several members on the same data, on equal footing, one table to decide from."""

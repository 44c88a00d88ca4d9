"""Trackers, which write a run's numbers and pictures to files and dashboards."""

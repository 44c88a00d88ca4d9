"""Tracking: records a run's numbers and pictures, in files and in dashboards."""

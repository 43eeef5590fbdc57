"""What happens to a batch: plain functions over a Control, for one process and for Celery alike."""

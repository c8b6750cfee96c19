"""Files that frontends bring to this worker, and fetch from it: over HTTP, and through object storage."""

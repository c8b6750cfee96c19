"""The way from an empty database to `schema`, one file in `versions` per step. Forward only: each step
keeps the previous release working (expand, then contract)."""

"""Bounds of answering commands."""

from typing import Final

PER_SUBJECT_MAX: Final = 128  # Requests at work; beyond it they are refused, and other subjects go on.
REPORT_BEFORE_REPLY_S: Final = 3.0  # For a report of what has changed; then the reply goes without it.
LAST_WORD_S: Final = 2.0  # For a reply, or the last progress event, when work ends.
PROGRESS_EVERY_S: Final = 0.25
PROGRESS_SEND_S: Final = 10.0  # A bus that takes longer for one event has lost it.
LISTING_EVERY_S: Final = 60.0  # Another process may have changed what is installed.
MODELS_LISTED_EVERY_S: Final = 10.0
MODEL_FILES_MAX: Final = 500  # In one report.
MODEL_FILES_PARTIAL_MAX: Final = 50  # In one report, the largest.
MODEL_FOLDERS_DEEP_MAX: Final = 4  # The folder of models itself included.
MODEL_ENTRIES_MAX: Final = 20_000  # Files and folders looked at in one go.

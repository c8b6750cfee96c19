"""Requests that a model is to answer, in whichever API they come: admission, bodies, answers, records."""

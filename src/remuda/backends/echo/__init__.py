"""A backend that answers with what it was asked, one word at a time: for tests and demonstrations.

Its answers depend on the request alone. Model options, request metadata and the environment make it slow,
fail, hang, crash or talk nonsense; docs/reference/echo.md lists all of them.
"""

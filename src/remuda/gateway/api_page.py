"""The OpenAPI document as a page for people: no scripts, and nothing fetched from elsewhere. Pure."""

import json
from collections.abc import Iterator
from html import escape
from typing import Final

from remuda.gateway.messages import Described

_HEAD: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
summary {{ cursor: pointer }}
pre {{ overflow-x: auto }}
code b {{ display: inline-block; min-width: 4em }}
details {{ margin: .3em 0 }}
details > :not(summary) {{ margin-left: 1.5em }}
</style>
<h1>{title}</h1>
"""


def page(document: Described) -> str:
    """Every route under its tag, and every schema."""
    return "\n".join(_lines(document))


def _lines(document: Described) -> Iterator[str]:
    info = document["info"]
    yield _HEAD.format(title=escape(f"{info['title']} {info['version']}"))
    yield f"<p>{escape(info['description'])}</p>"
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = "\n".join(_operation(method, path, operation))
            by_tag.setdefault(" ".join(operation.get("tags", ())), []).append(shown)
    for tag, shown_of_tag in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        yield from shown_of_tag
    yield "<h2>schemas</h2>"
    for name, schema in sorted(document["components"]["schemas"].items()):
        words = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        yield f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{words}</pre></details>'


def _operation(method: str, path: str, operation: Described) -> Iterator[str]:
    name = f"<code><b>{method.upper()}</b> {escape(path)}</code>"
    yield f"<details><summary>{name} {escape(operation['summary'])}</summary>"
    yield f"<p>{escape(operation['description'])}</p>"
    for one in operation.get("parameters", ()):
        about = escape(one.get("description", ""))
        yield f"<p><code>{escape(one['name'])}</code> in the {one['in']}. {about}</p>"
    if "requestBody" in operation:
        yield f"<p>Takes {_content(operation['requestBody'])}</p>"
    for status, response in operation["responses"].items():
        yield f"<p>{status}: {escape(response['description'])} {_content(response)}</p>"
    yield "</details>"


def _content(described: Described) -> str:
    return ", ".join(
        f"{escape(media_type)} {_link(content.get('schema', {}))}"
        for media_type, content in described.get("content", {}).items()
    )


def _link(schema: Described) -> str:
    name = escape(str(schema.get("$ref", "")).rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>' if name else ""

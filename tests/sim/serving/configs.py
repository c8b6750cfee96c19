"""Models of a simulation, as people configure them."""

ZONE = {"zone": "a"}


def model_text(
    name: str,
    context: int = 2048,
    *,
    zoned: bool = False,
    least: int = 0,
    pinned: bool = False,
    group: str = "",
) -> str:
    lines = [f"name: {name}", "backend: llama-cpp", f"context_size: {context}"]
    lines.append("parallel: 2")  # So that six who come together have to wait for a seat.
    lines.append(f"parameters: {{model: {name}.gguf}}")
    if least:
        lines.append(f"min_replicas: {least}")
    if pinned:
        lines.append("pinned: true")
    if group:
        lines.append(f"concurrency_groups: [{group}]")
    if zoned:
        lines.append("selector: {zone: a}")
    return "\n".join(lines) + "\n"

"""A model that is unloaded by hand while it is loaded, with requests waiting for it on two frontends."""

from dataclasses import dataclass, field
from threading import Event

from tests.integration.serving.asking import add_echo, chat, open_stream
from tests.integration.serving.site import Site, at_once, wait_until_unloaded
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

TOLD = "unwanted was unloaded by an administrator while it was loading"
PATIENCE_S = 60.0


@dataclass
class Waiting:
    """A stream that waits; `knows` is set when it was told more than once how its load goes."""

    frontend: Frontend
    knows: Event = field(default_factory=Event)
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        with open_stream(self.frontend, "unwanted", "one two three") as answer:
            for line in answer.iter_lines():
                self.lines.append(line)
                if sum(one.startswith(":") and "loading" in one for one in self.lines) > 1:
                    self.knows.set()


def test_those_who_wait_are_told_and_only_who_comes_after_has_it_loaded_again(pair: Site) -> None:
    add_echo(pair.a, "unwanted", "echo_load_delay_ms:120000")
    wait_until_blocking(lambda: "unwanted" in str(pair.b.get("/api/models")))
    streams = [Waiting(frontend) for frontend in pair.frontends]
    with at_once(4) as callers:
        whole = [callers.submit(chat, frontend, "unwanted") for frontend in pair.frontends]
        read = [callers.submit(stream.read) for stream in streams]
        assert all(stream.knows.wait(PATIENCE_S) for stream in streams)
        unload(pair)
        answers = [one.result() for one in whole]
        for one in read:
            one.result()

    for answer in answers:
        assert answer.status_code == 503
        assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == ("model_unloaded", TOLD)
        assert int(answer.headers["Retry-After"]) >= 1
    for stream in streams:
        assert any(TOLD in line for line in stream.lines)
        assert [line for line in stream.lines if line][-1] == "data: [DONE]"
    wait_until_unloaded(pair.a, "unwanted")
    assert len(pair.loads_of("unwanted")) == 1, "nobody who was told has begun another"

    later = Waiting(pair.b)
    with at_once(1) as callers:
        callers.submit(later.read)
        assert later.knows.wait(PATIENCE_S)
        assert len(pair.loads_of("unwanted")) == 2
        unload(pair)
    wait_until_unloaded(pair.a, "unwanted")


def unload(pair: Site) -> None:
    done = pair.place.remuda("models", "unload", "unwanted", data="a")
    assert done.returncode == 0, done.stderr

"""What frontends tell each other of their requests in flight, about once a second. A frontend that has not
spoken for a while has nothing in flight, as far as the others know."""

from remuda.wire.codec import Count, Many, Message


class HeldReplica(Message):
    """How many requests one frontend has with one replica."""

    model: str
    index: Count = 0
    in_flight: Count = 0


class RequestsHeld(Message):
    """Frontend to frontends, ours: what I have in flight, and up to which change I know the replicas."""

    frontend: str
    change: Count = 0
    held: Many[HeldReplica] = ()

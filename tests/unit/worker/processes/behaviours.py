"""What processes may do, as drawn by Hypothesis."""

from hypothesis import strategies as st

from tests.support.scripted_machine import Script

seconds = st.sampled_from((0.0, 0.01, 0.3, 1.0, 7.0, 20.0, 70.0))
maybe = st.one_of(st.none(), seconds)
any_script = st.builds(
    Script,
    ready_s=maybe,
    exits_s=maybe,
    code=st.sampled_from((0, 1, -9)),
    closes_port_s=maybe,
    silent=st.sampled_from(((0.0, 0.0), (1.0, 40.0))),
    ends_in_s=maybe,
    survives_kills=st.sampled_from((0, 0, 0, 1, 2)),
    listens_elsewhere=st.sampled_from((False, False, False, True)),
    refuses_to_free=st.sampled_from(("", "UNIMPLEMENTED")),
    cannot_start=st.sampled_from(("", "", "", "no such program")),
)

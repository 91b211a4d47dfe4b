"""What a console log says against the kernel, and what of it counts."""

from __future__ import annotations

import pytest
from airlab.engines import EngineError
from airlab.engines.complaints import races, refuse

LINE = "=" * 66


def _race(title: str, *frames: str) -> str:
    lines = [LINE, f"BUG: KCSAN: data-race in {title}", "", "read to 0xffff of 4 bytes by task 1:"]
    lines += [f" {frame}" for frame in frames]
    lines += ["", "value changed: 0x0001 -> 0x0002", "Reported by Kernel Concurrency Sanitizer on:"]
    return "".join(f"[   12.345678] {line}\r\n" for line in [*lines, LINE])


OWN = _race("tcp_ack / tcp_poll", "tcp_ack+0x12/0x340", "netem_dequeue+0x1/0x20 [sch_netem]")
OURS = _race("j_get_info / tcp_ack", "tcp_ack+0x12/0x340", "j_get_info+0x1/0x20 [tcp_j]")


def test_races_are_known_by_the_modules_on_either_stack() -> None:
    found = races(f"[ 1.0] booted\n{OWN}[ 2.0] between\n{OURS}")
    assert [sorted(race.modules) for race in found] == [["sch_netem"], ["tcp_j"]]
    assert found[0].title == "data-race in tcp_ack / tcp_poll"
    assert "value changed" in found[1].text and "between" not in found[1].text


@pytest.mark.parametrize(
    ("frames", "modules"),
    [
        (("j_acked+0x1/0x20 [tcp_j]", "tcp_ack+0x1/0x20"), {"tcp_j"}),
        (("__run_timers+0x1/0x20", "mod_timer+0x1/0x20", "j_acked+0x1/0x20 [tcp_j]"), {"tcp_j"}),
        # The trace ring buffer reads the clock; the module has only written an event.
        (
            ("ktime_get_mono_fast_ns+0x1/0x20", "__rb_reserve_next.constprop.0+0x1/0x20",
             "ring_buffer_lock_reserve+0x1/0x20", "j_trace_sample+0x1/0x20 [tcp_j]"),
            set(),
        ),
        # The module was interrupted.
        (
            ("update_wall_time+0x1/0x20", "asm_sysvec_apic_timer_interrupt+0x1/0x20",
             "j_acked+0x1/0x20 [tcp_j]"),
            set(),
        ),
        # Races of unknown origin have one stack; a function of ours that the compiler split.
        (("j_acked.isra.0+0x1/0x20 [tcp_j]",), {"tcp_j"}),
    ],
    ids=["access", "own data", "far below", "interrupted", "one frame"],
)  # fmt: skip
def test_whose_a_race_is(frames: tuple[str, ...], modules: set[str]) -> None:
    assert races(_race("some", *frames))[0].modules == modules


def test_the_kernels_own_races_are_passed_over() -> None:
    refuse(OWN * 2, {"sch_netem", "veth"})


def test_a_race_in_another_module_is_refused_also_behind_one_of_the_kernels() -> None:
    with pytest.raises(EngineError, match="j_get_info / tcp_ack") as caught:
        refuse(OWN + OURS + OWN, {"sch_netem"})
    assert "[tcp_j]" in caught.value.console


def test_another_complaint_between_the_kernels_races_counts() -> None:
    with pytest.raises(EngineError, match="circular") as caught:
        refuse(f"{OWN}[ 3.0] WARNING: possible circular locking\n{OWN}", {"sch_netem"})
    assert caught.value.kind == "warning"


def test_half_a_report_is_refused() -> None:
    """A kernel that died in the middle of it has not said which modules it means."""
    with pytest.raises(EngineError, match="KCSAN"):
        refuse(OWN[: len(OWN) // 2], {"sch_netem"})


@pytest.mark.parametrize(
    "line",
    [
        "BUG: KASAN: slab-use-after-free in j_init+0x1/0x2 [tcp_j]",
        "UBSAN: shift-out-of-bounds in tcp_j.c:12:3",
        "BUG: sleeping function called from invalid context at mm/slab.h:1",
        "WARNING: suspicious RCU usage",
        "WARNING: inconsistent lock state",
        "INFO: trying to register non-static key.",
        "ODEBUG: free active (active state 0) object: 0xffff object type: timer_list",
        "INFO: task insmod:12 blocked for more than 300 seconds.",
        "unreferenced object 0xffff888004567890 (size 256):",
    ],
)
def test_what_detectors_say_is_refused(line: str) -> None:
    with pytest.raises(EngineError, match="the guest's kernel complained"):
        refuse(f"[    1.000000] all well\n[    2.000000] {line}\n", set())


def test_a_quiet_log_passes() -> None:
    refuse("[    1.000000] kmemleak: Kernel memory leak detector initialized\n", set())

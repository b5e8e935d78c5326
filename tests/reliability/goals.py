"""The goals G1 to G15, the tests that hold each, and the controls: tests of a broken server.

A selector is a test file, or `file::test` where the file holds other things too. `test_goals.py`
checks that everything named here is there.
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = "tests/reliability"
SERVE = "tests/serve"


@dataclass(frozen=True)
class Goal:
    id: str
    name: str
    tests: tuple[str, ...]  # selectors of all, controls too
    controls: tuple[str, ...]  # names of tests
    is_timed: bool = False  # it measures times: nothing runs beside it
    limit_s: float = 1_800.0

    @property
    def number(self) -> int:
        return int(self.id[1:])


GOALS = (
    Goal(
        "G1",
        "leaving",
        (f"{HERE}/test_disconnect.py",),
        (
            "test_a_server_that_does_not_notice_is_found_out",
            "test_an_engine_that_frees_no_slot_is_found_out",
        ),
    ),
    Goal(
        "G2",
        "load",
        (f"{SERVE}/test_speech_load.py",),
        ("test_a_stream_that_pauses_is_found_dry",),
        is_timed=True,
    ),
    Goal(
        "G3",
        "overload",
        (f"{HERE}/test_overload.py",),
        (
            "test_a_server_that_takes_everybody_is_found_out",
            "test_a_server_that_takes_everybody_lets_them_wait",
        ),
        is_timed=True,
    ),
    Goal(
        "G4",
        "slow clients",
        (f"{HERE}/test_slow_clients.py",),
        ("test_a_server_without_deadlines_is_found_out",),
        is_timed=True,
    ),
    Goal(
        "G5",
        "bad input",
        (
            f"{HERE}/test_fuzz_http.py",
            f"{HERE}/test_fuzz_sockets.py",
            f"{HERE}/test_api_schema.py",
            f"{SERVE}/test_request.py",
            f"{SERVE}/test_strict_json.py",
            f"{SERVE}/sockets/test_session.py",
            f"{SERVE}/wyoming/test_session.py",
        ),
        (
            "test_a_server_that_fails_or_hangs_is_found_out",
            "test_a_dialect_that_does_not_expect_bad_input_is_found_out",
            "test_a_server_that_does_not_expect_bad_input_is_found_out",
        ),
    ),
    Goal(
        "G6",
        "audio intake",
        (
            f"{HERE}/test_audio_intake.py",
            "tests/audio/test_sandbox.py",
            "tests/audio/test_confine.py",
        ),
        (
            "test_a_reader_without_limits_is_found_out",
            "test_a_reader_that_fails_otherwise_is_found_out",
        ),
    ),
    Goal(
        "G7",
        "isolation",
        (
            f"{HERE}/test_needle.py",
            "tests/backends/test_backends.py",
            "tests/backends/test_prefill.py",
            "tests/engine/test_stream.py::test_other_streams_do_not_change_audio",
        ),
        (
            "test_draws_from_a_shared_generator_are_found_out",
            "test_a_cache_by_name_is_found_out",
            "test_the_seed_test_fails_with_a_shared_random_generator",
        ),
        limit_s=3_000.0,
    ),
    Goal(
        "G8",
        "faults",
        (
            f"{HERE}/test_server_faults.py",
            f"{HERE}/test_hung_backend.py",
            f"{SERVE}/test_deaths.py",
            "tests/engine/test_engine_faults.py",
        ),
        (
            "test_a_broken_speech_that_ends_well_is_found_out",
            "test_a_fault_that_stays_is_found_out",
            "test_without_the_watch_nothing_that_waits_would_end",
        ),
    ),
    Goal(
        "G9",
        "soak",
        (f"{HERE}/test_soak.py",),
        (
            "test_a_leak_is_found_out",
            "test_a_leaky_server_is_found_out",
            "test_a_leaky_process_is_found_out",
        ),
    ),
    Goal(
        "G10",
        "the end",
        (f"{HERE}/test_drain_load.py",),
        (
            "test_an_early_end_that_looks_clean_is_found_out",
            "test_replicas_that_do_not_drain_are_found_out",
        ),
        is_timed=True,
    ),
    Goal(
        "G11",
        "runaway",
        (f"{HERE}/test_runaway.py", "tests/engine/test_guard.py"),
        ("test_a_server_without_the_guard_is_found_out", "test_a_tight_budget_is_found_out"),
    ),
    Goal(
        "G12",
        "truncation",
        (f"{HERE}/test_midstream_error.py",),
        (
            "test_every_client_falls_for_a_clean_end",
            "test_every_socket_falls_for_a_clean_end",
        ),
    ),
    Goal(
        "G13",
        "surface",
        (f"{HERE}/test_surface.py",),
        (
            "test_a_server_without_the_guard_is_found_out",
            "test_a_guard_with_a_door_is_found_out",
            "test_a_server_that_believes_the_host_is_found_out",
        ),
    ),
    Goal(
        "G14",
        "static rules",
        (
            f"{HERE}/test_static_rules.py",
            "tests/test_package.py::test_no_module_executes_code_from_files",
            "tests/test_package.py::test_dangerous_call_is_detected",
        ),
        (
            "test_a_line_that_breaks_a_rule_is_found_out",
            "test_dangerous_call_is_detected",
            "test_bandit_finds_what_it_should",
        ),
    ),
    Goal(
        "G15",
        "replicas",
        (f"{HERE}/test_cluster_chaos.py",),
        ("test_a_proxy_without_checks_is_found_out",),
    ),
)

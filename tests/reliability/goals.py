"""The goals G1 to G15, their tests, and their controls: tests of a server broken on purpose.

A selector is a test file, or `file::test` if the file has other tests too. `test_goals.py` checks
that all selectors exist.
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = "tests/reliability"
SERVE = "tests/serve"


@dataclass(frozen=True)
class Goal:
    id: str
    name: str
    tests: tuple[str, ...]  # selectors, including the controls
    controls: tuple[str, ...]  # test names
    is_timed: bool = False  # measures times, so it runs alone
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
            "test_control_server_that_ignores_disconnects_is_detected",
            "test_control_engine_that_keeps_slots_is_detected",
        ),
    ),
    Goal(
        "G2",
        "load",
        (f"{SERVE}/streams/test_load.py",),
        ("test_underrun_check_detects_a_pause",),
        is_timed=True,
    ),
    Goal(
        "G3",
        "overload",
        (f"{HERE}/test_overload.py",),
        (
            "test_control_server_without_a_queue_limit_is_detected",
            "test_control_server_without_a_queue_limit_makes_clients_wait",
        ),
        is_timed=True,
    ),
    Goal(
        "G4",
        "slow clients",
        (f"{HERE}/test_slow_clients.py",),
        ("test_control_server_without_timeouts_is_detected",),
        is_timed=True,
    ),
    Goal(
        "G5",
        "bad input",
        (
            f"{HERE}/test_fuzz_http.py",
            f"{HERE}/test_fuzz_sockets.py",
            f"{HERE}/test_api_schema.py",
            f"{SERVE}/speaking/test_request.py",
            f"{SERVE}/input/test_strict_json.py",
            f"{SERVE}/sockets/test_session.py",
            f"{SERVE}/wyoming/test_session.py",
        ),
        (
            "test_control_server_that_fails_or_hangs_is_detected",
            "test_control_socket_protocol_without_checks_is_detected",
            "test_control_route_without_input_checks_is_detected",
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
            "test_control_reader_without_limits_is_detected",
            "test_control_reader_with_another_error_is_detected",
        ),
    ),
    Goal(
        "G7",
        "isolation",
        (
            f"{HERE}/test_isolation.py",
            "tests/backends/test_backends.py",
            "tests/backends/test_prefill.py",
            "tests/engine/streams/test_stream.py::test_other_streams_do_not_change_audio",
        ),
        (
            "test_control_shared_random_generator_is_detected",
            "test_control_voice_cache_by_name_is_detected",
            "test_seed_test_fails_with_shared_generator",
        ),
        limit_s=3_000.0,
    ),
    Goal(
        "G8",
        "faults",
        (
            f"{HERE}/test_server_faults.py",
            f"{HERE}/test_hung_backend.py",
            f"{SERVE}/models/test_crashes.py",
            "tests/engine/test_engine_faults.py",
        ),
        (
            "test_control_failed_stream_with_a_clean_end_is_detected",
            "test_control_permanent_fault_is_detected",
            "test_control_hung_backend_without_a_watchdog_is_not_detected",
        ),
    ),
    Goal(
        "G9",
        "soak",
        (f"{HERE}/test_soak.py",),
        (
            "test_control_leak_is_detected",
            "test_control_leaky_server_is_detected",
            "test_control_leaky_process_is_detected",
        ),
    ),
    Goal(
        "G10",
        "the end",
        (f"{HERE}/test_drain_load.py",),
        (
            "test_control_early_end_that_looks_complete_is_detected",
            "test_control_replicas_without_a_drain_are_detected",
        ),
        is_timed=True,
    ),
    Goal(
        "G11",
        "runaway",
        (f"{HERE}/test_runaway.py", "tests/engine/utterances/test_guard.py"),
        (
            "test_control_engine_without_runaway_guard_is_detected",
            "test_control_tight_frame_budget_is_detected",
        ),
    ),
    Goal(
        "G12",
        "truncation",
        (f"{HERE}/test_midstream_error.py",),
        (
            "test_control_client_accepts_a_truncation_with_a_clean_end",
            "test_control_socket_client_accepts_a_truncation_with_a_clean_end",
        ),
    ),
    Goal(
        "G13",
        "surface",
        (f"{HERE}/test_surface.py",),
        (
            "test_control_server_without_middleware_is_detected",
            "test_control_middleware_with_a_path_prefix_check_is_detected",
            "test_control_server_that_trusts_the_host_header_is_detected",
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
            "test_control_line_against_a_rule_is_detected",
            "test_dangerous_call_is_detected",
            "test_control_bandit_detects_unsafe_code",
        ),
    ),
    Goal(
        "G15",
        "replicas",
        (f"{HERE}/test_cluster_chaos.py",),
        ("test_control_proxy_without_health_checks_is_detected",),
    ),
)

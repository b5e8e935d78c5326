"""Arguments of CUDA driver calls, recorded without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vivace.backends.cuda import driver


class Request(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int)]


@pytest.mark.parametrize("is_dependent", [False, True])
def test_launch_passes_sizes_stream_request_and_attributes(
    monkeypatch: pytest.MonkeyPatch, is_dependent: bool
) -> None:
    launches: list[dict[str, Any]] = []

    def record(config: Any, function: ctypes.c_void_p, parameters: Any, extra: None) -> int:
        given = config._obj
        attributes = given.attributes[: given.num_attributes]
        launches.append(
            {
                "function": function.value,
                "sizes": [*given.grid, *given.block, given.shared],
                "stream": given.stream,
                "attributes": [(each.name, each.value[0]) for each in attributes],
                "number": Request.from_address(parameters[0]).number,
            }
        )
        return 0

    monkeypatch.setattr(driver, "_driver", lambda: SimpleNamespace(cuLaunchKernelEx=record))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5))
    function = ctypes.c_void_p(7)
    driver.launch(function, (2, 3, 4), 128, 1024, Request(9), is_dependent=is_dependent)
    assert launches == [
        {
            "function": 7,
            "sizes": [2, 3, 4, 128, 1, 1, 1024],
            "stream": 5,
            "attributes": [(driver.DEPENDENT_LAUNCH, 1)] if is_dependent else [],
            "number": 9,
        }
    ]

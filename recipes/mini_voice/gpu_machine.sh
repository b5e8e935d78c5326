# Sourced by the scripts that train on a GPU machine: Python, a clock and the shared GPU.
python=${PYTHON:-python3}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
begun=$(date +%s)
now() { echo $(($(date +%s) - begun)); } # seconds since the start of the script
say() { echo "== $(now) s: $*"; }

share_gpu() { # under MPS a dozen processes use the GPU at the same time; files in folder $1
  command -v nvidia-cuda-mps-control > /dev/null || return
  export CUDA_MPS_PIPE_DIRECTORY=$1/mps CUDA_MPS_LOG_DIRECTORY=$1/mps
  mkdir -p "$1/mps"
  setsid nvidia-cuda-mps-control -d # its own session: it outlives the call
  timeout 30 "$python" -c "import torch; torch.ones(1, device='cuda')" && return
  echo quit | timeout 5 nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

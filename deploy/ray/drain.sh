#!/usr/bin/env bash
# Stops a whole Ray Serve deployment without cutting a stream:
#   deploy/ray/drain.sh [DASHBOARD] [TIMEOUT_S]      default: http://127.0.0.1:8265, 120
# New requests are refused, running streams finish, then the replicas exit. Exit code 0: no replica
# is left, and `serve run` or the cluster can be stopped. Exit code 1: streams are still running.
set -euo pipefail

dashboard=${1:-http://127.0.0.1:8265}
timeout_s=${2:-120}
here=$(cd "$(dirname "$0")" && pwd)
# Ray's commands read the cluster's token only in this mode. Use "disabled" for a cluster without a token.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}

serve deploy --address "$dashboard" "$here/drained.yaml"
deadline=$((SECONDS + timeout_s))
until serve status --address "$dashboard" | grep -q '^applications: {}'; do
    if ((SECONDS >= deadline)); then
        echo "not drained after $timeout_s s: streams are still running" >&2
        exit 1
    fi
    sleep 1
done
echo "drained: no application is left"

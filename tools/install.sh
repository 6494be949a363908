#!/usr/bin/env bash
# Make a virtual environment with the package, its test tools and pinned dependencies: install.sh FOLDER
#
# The CPU build of torch is enough for demo and tests. Where pip would fetch the CUDA build, several gigabytes,
# this stops and says what to do instead of fetching it unasked.
set -euo pipefail
venv=$1
pin=$(grep '^torch==' constraints.txt)

[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/pip" --disable-pip-version-check)

version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true)
if [ "torch==$version" != "$pin" ]; then
    plan=$("${pip[@]}" install --quiet --dry-run --report - ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$pin" 2>/dev/null || true)
    if [ -z "${CUDA:-}" ] && grep -q '"name": "nvidia-' <<<"$plan"; then
        echo "Here pip would install the CUDA build of $pin, several gigabytes." >&2
        echo "For the CPU build: make setup TORCH_INDEX=<the CPU index that PyTorch's install page names>" >&2
        echo "To accept CUDA:    make setup CUDA=1" >&2
        echo "Then run the same command again." >&2
        exit 1
    fi
    echo "Installing $pin"
    "${pip[@]}" install --quiet --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$pin" 2> >(grep -v '^WARNING: Location' >&2)
fi
echo "Installing worstclass and its test tools"
"${pip[@]}" install --quiet --constraint constraints.txt --editable '.[test]' 2> >(grep -v '^WARNING: Location' >&2)

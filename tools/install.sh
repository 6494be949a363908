#!/usr/bin/env bash
# Make a virtual environment with the package and its pinned dependencies: install.sh FOLDER [EXTRA]
#
# For Linux, PyPI's torch is the CUDA build, several gigabytes. It is taken where an NVIDIA driver answers; elsewhere the
# CPU build is. TORCH=cuda or TORCH=cpu chooses by hand. A pip that is set up to find a CPU build finds its own.
set -euo pipefail
venv=$1
extra=${2:+[$2]}
pin=$(grep '^torch==' constraints.txt)
cpu_index=https://download.pytorch.org/whl/cpu # PyTorch's install page names it

[ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"

install() {
    "$venv/bin/pip" --disable-pip-version-check install --quiet --constraint constraints.txt "$@" \
        2> >(grep -v '^WARNING: Location' >&2)
}

# The build of torch that is installed as pinned: cpu, cuda, or nothing.
installed() {
    "$venv/bin/python" - "$pin" <<'PYTHON' 2>/dev/null || true
import importlib.metadata as metadata, sys
if "torch==" + metadata.version("torch").split("+")[0] == sys.argv[1]:
    print("cuda" if any(each.startswith("nvidia-") for each in metadata.requires("torch") or ()) else "cpu")
PYTHON
}

# The build that pip takes as it is set up here.
offered() {
    local plan
    plan=$("$venv/bin/pip" install --quiet --dry-run --ignore-installed --report - "$pin" 2>/dev/null || true)
    if grep -q '"name": "nvidia-' <<<"$plan"; then echo cuda; else echo cpu; fi
}

case ${TORCH:-} in
    cpu | cuda) wanted=$TORCH ;;
    "") if nvidia-smi >/dev/null 2>&1; then wanted=cuda; else wanted=cpu; fi ;;
    *) echo "TORCH is cpu or cuda, not '$TORCH'." >&2 && exit 2 ;;
esac
found=$(installed)
if [ "$(uname -s)" = Darwin ]; then
    [ -n "$found" ] || { echo "Installing $pin" && install --no-deps "$pin"; }
elif [ -z "$found" ] || { [ -n "${TORCH:-}" ] && [ "$found" != "$wanted" ]; }; then
    choice=$wanted-$(offered)
    case $choice in
        cpu-*) echo "Installing $pin for the CPU (the CUDA build: make demo TORCH=cuda)" ;;
        cuda-cuda) echo "Installing $pin for CUDA, several gigabytes (the CPU build: make demo TORCH=cpu)" ;;
        cuda-cpu) echo "Installing $pin for the CPU: pip is set up to find no CUDA build here" ;;
    esac
    from=()
    [ "$choice" = cpu-cuda ] && from=(--index-url "$cpu_index")
    install --force-reinstall --no-deps ${from[@]+"${from[@]}"} "$pin"
fi
echo "Installing worstclass${2:+ and what '$2' needs}"
install --editable ".$extra"

# Sourced by the scripts beside it, from the project's root.

# Where this is set, as in many images, each fresh interpreter compiles all that it imports: five seconds for torch.
unset PYTHONDONTWRITEBYTECODE

# ensure_venv DIR PYTHON EXTRA: a virtual environment in DIR that has this project, editable, with that extra.
# (Python compiles what is imported. To have pip compile all of it takes longer than to install it.)
ensure_venv() {
    local venv=$1 python=$2 extra=$3 wanted
    "$venv/bin/python" -c "" 2>/dev/null || "$python" -m venv --clear "$venv"
    wanted=$(pwd && cat pyproject.toml)
    if [ "$wanted" != "$(cat "$venv/installed-$extra" 2>/dev/null)" ]; then
        echo "Setting up $venv ($extra), a minute or so the first time."
        "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[$extra]"
        echo "$wanted" >"$venv/installed-$extra"
    fi
}

"""What the folders of a federation hold: scripts, units of systemd, steps."""

SUPERLINK = """\
#!/bin/sh
# The SuperLink: participants' SuperNodes call it, it calls nobody.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/home" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
PATH="$PWD/venv/bin:$PATH"
exec flower-superlink --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.crt --ssl-keyfile keys/server.key \\
    --enable-supernode-auth --host "${{LISTEN:-0.0.0.0}}" --port {port} --database superlink.db \\
    --disable-runtime-dependency-installation
"""

FLWR = """\
#!/bin/sh
# Flower's command with this folder's settings: sh flwr.sh run app here --stream
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/home" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
PATH="$PWD/venv/bin:$PATH"
cat > home/config.toml <<END
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
root-certificates = "$PWD/keys/ca.crt"
END
exec flwr "$@"
"""

SETTINGS = """\
# Settings of this participant.
NAME="{name}"
SUPERLINK="{host}:{port}"
# a .npz file with the arrays x (inputs) and y (labels)
DATA="$PWD/data.npz"
# what may be told beside updates; leave out a word to refuse it, and with it experiments that ask for it
ALLOW="{allow}"
# a port of this machine that the SuperNode uses for itself, on 127.0.0.1 only
PORT=9094
"""

SUPERNODE = """\
#!/bin/sh
# The SuperNode: it calls the SuperLink, nobody calls it.
set -eu
cd "$(dirname "$0")"
. ./settings.sh
[ -e node.key ] || { echo "There is no node.key here: venv/bin/cofair deploy key node.key" >&2; exit 2; }
[ -e "$DATA" ] || { echo "There is no $DATA: settings.sh (DATA) says where your data is." >&2; exit 2; }
export FLWR_HOME="$PWD/home" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
PATH="$PWD/venv/bin:$PATH"
exec flower-supernode --root-certificates ca.crt --superlink "$SUPERLINK" --auth-supernode-private-key node.key \\
    --host 127.0.0.1 --port "$PORT" --node-config "name=\\"$NAME\\" data=\\"$DATA\\" allow=\\"$ALLOW\\""
"""

UNIT = """\
# Copy to ~/.config/systemd/user/, set the folder below (%h is your home), then:
#   systemctl --user enable --now {unit}
#   loginctl enable-linger    (so that it runs while nobody is logged in)
[Unit]
Description=cofair {what}

[Service]
ExecStart=/bin/sh %h/federation/{script}
Restart=always
{restart}
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=default.target
"""

AT_ONCE = "RestartSec=5"
AFTER_A_MINUTE = """\
# Flower takes a node that went without goodbye for connected for about a minute, and refuses it until then
RestartSec=70"""

ORGANISER = """\
# Steps of the organiser

Everything here stays on your machine; `keys/` above all. Participants get their folder, nothing else.

1. Install: `python3 -m venv venv && venv/bin/pip install 'cofair[flower,report]=={version}'`
2. Start the SuperLink and leave it running: `sh superlink.sh` (port {port}; or the unit `cofair-superlink.service`).
   The next steps need a second terminal.
3. Give each participant its folder. Each sends back `node.key.pub`: put it into `public-keys/` under its name, make
   sure by another way (telephone) that it is the participant's, and register it:

```
{register}
```

4. Put your test and validation set into a .npz file (x_test, y_test, x_validation, y_validation) and run:

```
sh flwr.sh run app here --stream --run-config "out='$PWD/run'" --run-config "data='$PWD/server.npz'"
```

The run waits until all participants are there, and trains with them. Its results are in `run/`, and as a page in
`run/report.html` after `venv/bin/cofair report run`.

- `sh flwr.sh supernode list here` says who is connected.
- A run that was interrupted goes on when the same command is given with `--run-config "resume=true"` added.
- The certificates are valid for {days} days.
"""

PARTICIPANT = """\
# Steps of participant {name}

Before you join: this federation runs the method `{method}`, as `experiment.toml` says. Beside updates of the model it
asks for the following, and for nothing else:

{asked}

What you allow stands in `settings.sh` (ALLOW). Your samples, labels and file names never leave this machine.

1. `python3 -m venv venv && venv/bin/pip install 'cofair[flower]=={version}'`
2. `venv/bin/cofair deploy key node.key` makes your key; send `node.key.pub`, and only that, to the organiser.
3. `sh start.sh` once your data is in `data.npz` (arrays x and y) and the organiser has registered your key. To start
   it with the machine, use `cofair-supernode.service`.

If it ends at once with *Failed to activate SuperNode*, the organiser has not registered this key, or it was stopped
less than a minute ago: wait, and start it again. *certificate has expired* or *certificate verify failed*: ask the
organiser for a new `ca.crt`. An address in use: set another PORT in `settings.sh`.

Flower runs the app that the organiser sends, as the user who starts the SuperNode: give it an account that can read
your training data and nothing else.
"""

NEXT = """\
Written: {folder}
  organiser/            keep it; STEPS.md says what to do
  participant-NAME/     give each participant its folder; its STEPS.md has three commands
No key of a participant is in there: each makes its own."""

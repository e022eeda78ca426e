"""What the folders of a federation hold: scripts, systemd units, settings, steps."""

SUPERLINK = """\
#!/bin/sh
# The organiser's server: SuperLink, SuperExec, and the proxy that participants call. It calls nobody.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/venv/bin:$PATH"
exec cofair deploy superlink .
"""

FLWR = """\
#!/bin/sh
# Flower's command with this folder's settings and the organiser's credential: sh flwr.sh run app here --stream
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/home" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# what this machine's processes send each other goes through no proxy
export NO_PROXY="127.0.0.1,localhost${{NO_PROXY:+,$NO_PROXY}}" no_proxy="127.0.0.1,localhost${{no_proxy:+,$no_proxy}}"
PATH="$PWD/venv/bin:$PATH"
cat > home/config.toml <<END
[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{inner_port}"
root-certificates = "$PWD/keys/ca.crt"
END
exec flwr "$@"
"""

ORGANISER_SETTINGS = """\
# Where participants find the server.
# the port that they call, and the address of this machine at which it is open
port = {port}
listen = "{listen}"
# the port of the SuperLink itself, on 127.0.0.1 only
inner_port = {inner_port}
"""

SERVER_SETTINGS = """\
# What only the server knows: it is read on this machine and sent to nobody. Paths are relative to this folder.
# participants to start with, the fewest to start with, and how long the server waits (seconds)
clients = {clients}
minimum = {clients}
join_seconds = 300
round_seconds = 600
poll_seconds = 1.0
# the run folder; a run that was interrupted there is resumed
out = "run"
# the server's test and validation set; "" for the experiment's own data
data = "server.npz"
"""

PARTICIPANT_SETTINGS = """\
# Settings of this participant.
name = "{name}"
superlink = "{host}:{port}"
# a .npz file with the arrays x (inputs) and y (labels)
data = "data.npz"
# what may be sent besides updates; remove a word to refuse it, and with it experiments that ask for it
allow = [{allow}]
# the apps that may run here, by their SHA-256: no other is ever started, whoever sends it
apps = [{apps}]
# a port of this machine that the SuperNode uses for itself, on 127.0.0.1 only
port = 9094
"""

SUPERNODE = """\
#!/bin/sh
# The SuperNode: it calls the organiser's server, nobody calls it.
set -eu
cd "$(dirname "$0")"
PATH="$PWD/venv/bin:$PATH"
exec cofair deploy node .
"""

UNIT = """\
# Copy to ~/.config/systemd/user/, set the folder below (%h is your home), then:
#   systemctl --user enable --now {unit}
#   loginctl enable-linger    (so that it also runs while nobody is logged in)
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
# Flower still regards a node that was killed as connected for about a minute, and refuses it until then
RestartSec=70"""

ORGANISER = """\
# Steps of the organiser

Everything here stays on your machine, above all `keys/`: whoever has `keys/control.token` can act as the organiser, and
whoever has `keys/ca.key` decides who takes part. Participants get their own folder and nothing else.

1. Install nginx (`apt-get install nginx-light`), which participants connect to, and cofair:
   `python3 -m venv venv && venv/bin/pip install 'cofair[flower,report]=={version}'`
2. If you change something in `app/` (a model of your own, the experiment), pack it again before you give out folders:
   `venv/bin/cofair deploy pack ..` writes the app and its hash into every participant's folder.
3. Start the server and leave it running: `sh superlink.sh` (or the unit `cofair-superlink.service`). Open port {port}
   to participants, and no other: Flower itself listens on 127.0.0.1. The next steps need a second terminal.
4. Give each participant its folder. Each sends back `node.csr` and reads you its fingerprint over another channel
   (the telephone). Admit it, compare the fingerprint that is printed, and send it `participants/NAME.crt`:

```
{admit}
```

5. Put your test and validation set into `server.npz` (x_test, y_test, x_validation, y_validation), look at
   `server.toml`, and run:

```
sh flwr.sh run app here --stream
```

The run waits until all participants are there, and trains with them. Its results are in `run/`, and as a page in
`run/report.html` after `venv/bin/cofair report run`.

- `sh flwr.sh supernode list here` shows who is connected.
- `venv/bin/cofair deploy remove NAME` removes a participant, from its next call on.
- Give the same command again to resume a run that was interrupted.
- The certificates are valid for {days} days.
"""

PARTICIPANT = """\
# Steps of participant {name}

Before you join: this federation runs the method `{method}`, as `experiment.toml` says. Besides updates of the model it
asks for the following, and for nothing else:

{asked}

What you allow is in `settings.toml` (allow). Your samples, labels and file names never leave this machine.

The app that will run here is `app.fab`, an archive that any zip program opens. Its SHA-256 is

    {app}

and is in `settings.toml` (apps). No other app is ever started here, whoever sends it. Compare the hash
(`sha256sum app.fab`) with the one that the organiser gave you over another channel.

1. `python3 -m venv venv && venv/bin/pip install 'cofair[flower]=={version}'`
2. `venv/bin/cofair deploy key` makes your key, node.key, which stays here. Send `node.csr`, and only that, to the
   organiser, and compare the fingerprint that is printed with the organiser's over another channel (the telephone).
3. The organiser sends back your certificate: put it here as `node.crt`.
4. Run `sh start.sh` once your data is in `data.npz` (arrays x and y). To start it with the machine, use
   `cofair-supernode.service`.

*Failed to activate SuperNode*: it was stopped less than a minute ago; wait, and start it again. *The organiser's server
refuses this participant*: the line says why. *certificate verify failed*: ask the organiser for a new `ca.crt`. A port
that is already in use: set another one in `settings.toml`.

The app runs as the user who starts the SuperNode: use an account that can read your training data and nothing else.
"""

NEXT = """\
Written: {folder}
  organiser/            keep it; STEPS.md says what to do
  participant-NAME/     give each participant its folder; its STEPS.md has four steps
The app that participants agree to has the SHA-256 {app}
It contains no participant's key: each participant makes its own."""

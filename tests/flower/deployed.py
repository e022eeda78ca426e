"""Real deployments as tests use them; where nginx is missing they are skipped, with the sentence that says so."""

import shutil

import pytest

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin") is None and shutil.which("nginx") is None,
    reason="nginx is not installed, and a deployment lets participants in through it: apt-get install nginx-light",
)

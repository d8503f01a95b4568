"""Ports for programs of clusters that start at the same time."""

import socket
import subprocess
import sys

import pytest
from e2e.cluster.ports import free_port


def test_a_port_is_given_once():
    """Neither this process nor another one is given a port that was given before."""
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", ports[0]))
    script = "from e2e.cluster.ports import free_port; print(*(free_port() for _ in range(200)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(ports) & set(map(int, done.stdout.split()))


def test_a_program_listens_there():
    """The program that the port is for can listen there, again after it ended, and alone."""
    port = free_port()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)),
            pytest.raises(OSError, match="in use"),
        ):
            socket.create_server(("127.0.0.1", port))

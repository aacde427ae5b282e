"""kvtop serve: loopback only, the command it starts for each page, and what is said when it cannot."""

from __future__ import annotations

import shlex
import socket
import sys

import pytest
from loopback import free_port  # pyright: ignore[reportMissingImports]

from kvtop.cli.main import main
from kvtop.cli.terminal import can_open_tui
from kvtop.tui.page import Page
from kvtop.tui.terminal import check_terminal


@pytest.fixture
def served(monkeypatch):
    """Arguments of the servers that were started, in place of starting them."""
    started: list[dict] = []

    def serve(page: Page) -> None:
        started.append({"command": shlex.split(page.command), "host": page.host, "port": page.port})

    monkeypatch.setattr(Page, "serve", serve)
    return started


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], ["live"]),
        (["replay", "a b"], ["replay", "a b"]),
        (["--", "live", "-p", "lpm"], ["live", "-p", "lpm"]),
    ],
)
def test_it_listens_on_loopback_and_starts_the_command_for_each_page(served, words, command):
    number = free_port()
    assert main(["serve", "--port", str(number), *words]) == 0
    (server,) = served
    assert server["host"] == "127.0.0.1"
    assert server["port"] == number
    assert server["command"] == [sys.executable, "-m", "kvtop", *command]


def test_a_port_in_use_and_a_wrong_command_are_one_line(served, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot be used" in capsys.readouterr().err
    assert main(["serve", "bench"]) == 2
    assert "live" in capsys.readouterr().err
    assert main(["serve", "--port", "0"]) == 2
    assert served == []


def test_the_address_is_told_when_connections_are_taken_there(monkeypatch, capsys):
    """The line is what scripts wait for. Told at its start, as the base class does, nobody would listen yet."""
    number, taken = free_port(), []

    def tell(self: Page, listening: str) -> None:
        with socket.create_connection(("127.0.0.1", number), timeout=60):
            taken.append(listening)
        told(self, listening)
        self.request_exit()

    told = Page._tell
    monkeypatch.setattr(Page, "_tell", tell)
    monkeypatch.setattr(Page, "initialize_logging", lambda self: None)
    assert main(["serve", "--port", str(number)]) == 0
    assert taken
    assert capsys.readouterr().out == f"kvtop is at http://127.0.0.1:{number} (Ctrl+C ends it)\n"


def test_without_the_package_it_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    monkeypatch.delitem(sys.modules, "kvtop.tui.page")
    assert main(["serve", "--port", str(free_port())]) == 2
    err = capsys.readouterr().err
    assert "kvtop serve needs the package textual-serve: pip install 'kvtop[serve]'" in err
    assert err.count("\n") == 1


def test_a_page_counts_as_a_terminal(monkeypatch):
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    assert can_open_tui()
    check_terminal()

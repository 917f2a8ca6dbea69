"""Whom the servers run as. Postgres refuses root, so root hands them to `postgres`, else to `nobody`; where that
user cannot reach the binaries or the data, the server runs in a user namespace where root is an ordinary user.

No folder is ever opened up for this: a parent that only root may enter stays so.
"""

import contextlib
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_BECOME = """\
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


class NoAccountError(RuntimeError):
    """This user cannot run Postgres here; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Account:
    """How to start a server process: as which user, behind which prefix, and who owns its files (None: leave them)."""

    user: int | None = None
    group: int | None = None
    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None

    def own(self, folder: Path) -> None:
        """Makes the folder and all in it belong to the account, unless they do already."""
        if self.owner is None or folder.stat().st_uid == self.owner[0]:
            return
        for parent, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.chown(os.path.join(parent, name), *self.owner, follow_symlinks=False)
        # Last, so that a chown cut short is done again by the next start.
        os.chown(folder, *self.owner)

    def popen(
        self, command: list[str], *, output: int, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts the command in a session of its own, holding none of the caller's stdin, stdout and stderr."""
        return subprocess.Popen(
            [*self._become(), *self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
        )

    def _become(self) -> tuple[str, ...]:
        """The prefix that turns root into the user. Not `Popen(user=)`: that makes Python fork in earnest instead of vfork, and
        gRPC's handlers crash a fork made while calls are under way (one start in three under load)."""
        if self.user is None:
            return ()
        return (sys.executable, "-I", "-S", "-c", _BECOME, str(self.group), str(self.user))


def choose_account(bindir: Path, folders: Iterable[Path]) -> Account:
    """The account that can run the binaries and reach the folders. Raises NoAccountError, only ever for root."""
    if os.geteuid() != 0:
        return Account()
    folders = list(folders)
    entries = _ordinary_users()
    for entry in entries:
        account = Account(entry.pw_uid, entry.pw_gid, owner=(entry.pw_uid, entry.pw_gid))
        if all(_reachable(folder, entry.pw_uid, entry.pw_gid) for folder in folders) and _runs(account, bindir):
            return account
    for entry in entries:
        account = _in_namespace(entry)
        if _runs(account, bindir):
            return account
    raise NoAccountError(
        "Postgres does not run as root, neither `postgres` nor `nobody` can reach both its binaries and the data, "
        "and this system does not allow user namespaces: use a data folder and a Python environment that every user "
        "may enter, or run graphd as an ordinary user"
    )


def check_known() -> None:
    """Raises NoAccountError for a user id without a name (a container's, often), which initdb refuses. Whom root hands the
    servers to has one."""
    user = os.geteuid()
    if user == 0:
        return
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise NoAccountError(
            f"Postgres does not set up data for a user without a name, and user id {user} has none here: run graphd as a "
            f"user that /etc/passwd lists, or add a line for this id to it"
        ) from None


def _ordinary_users() -> list[pwd.struct_passwd]:
    found = []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found.append(pwd.getpwnam(name))
    return found


def _in_namespace(entry: pwd.struct_passwd) -> Account:
    """Root, who in there is this user: one with a name, since initdb looks for it."""
    return Account(
        prefix=("unshare", "--user", f"--map-user={entry.pw_uid}", f"--map-group={entry.pw_gid}"), owner=(0, 0)
    )


def _reachable(folder: Path, user: int, group: int) -> bool:
    """Whether the user may enter the folder: every part of the path has the execute bit that counts for him."""
    folder = folder.resolve()
    for part in (folder, *folder.parents):
        entry = part.stat()
        if entry.st_uid == user:
            bit = stat.S_IXUSR
        elif entry.st_gid == group:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not entry.st_mode & bit:
            return False
    return True


def _runs(account: Account, bindir: Path) -> bool:
    try:
        process = account.popen([str(bindir / "postgres"), "--version"], output=subprocess.DEVNULL)
    except OSError:
        return False
    return process.wait(timeout=10) == 0

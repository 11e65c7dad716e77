"""A disk that loses unsynced data: replays the changes recorded by disk.cpp up to some point, and keeps a random part
of the unsynced ones.

A file keeps its content at the last sync and any first part of later writes, whose end may be zeros. A folder keeps
its entries at the last sync and any first part of later changes. So only syncs order anything, as in POSIX; most file
systems promise more.
"""
from dataclasses import dataclass, field


@dataclass
class File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    emptied: bool = False  # since the last sync

    def sync(self):
        self.durable, self.emptied = bytes(self.content), False

    def left(self, draw):
        base = b"" if self.emptied and draw.random() < 0.5 else self.durable
        if not self.content.startswith(base):
            return base
        end = draw.randint(len(base), len(self.content))
        zeros = draw.randint(0, end - len(base)) if draw.random() < 0.5 else 0
        return bytes(self.content[:end - zeros]) + bytes(zeros)


@dataclass
class Folder:
    entries: dict = field(default_factory=dict)  # by name
    durable: dict = field(default_factory=dict)
    changes: list = field(default_factory=list)  # since the last sync: entries that are set; None: removed

    def change(self, **entries):
        self.changes.append(entries)
        self.apply(self.entries, entries)

    @staticmethod
    def apply(to, entries):
        for name, entry in entries.items():
            if entry is None:
                to.pop(name, None)
            else:
                to[name] = entry

    def sync(self):
        self.durable, self.changes = dict(self.entries), []

    def left(self, draw):
        left = dict(self.durable)
        for entries in self.changes[:draw.randint(0, len(self.changes))]:
            self.apply(left, entries)
        return left


class Disk:
    def __init__(self, folder):
        self.folder = str(folder)
        self.root = Folder()
        self.opened = {}
        self.said = ""

    def find(self, path):
        entry = self.root
        for name in path[len(self.folder):].strip("/").split("/"):
            if name:
                entry = entry.entries.get(name) if isinstance(entry, Folder) else None
        return entry

    def parent(self, path):
        folder, name = path.rstrip("/").rsplit("/", 1)
        return self.find(folder), name

    def play(self, operation, first, second, data):
        if operation == "say":
            self.said += data.decode(errors="replace")
        elif operation == "write":
            self.opened[first].content += data
        elif operation == "sync":
            self.opened[first].sync()
        elif operation in ("create", "empty", "look"):
            folder, name = self.parent(first)
            entry = self.find(first)
            if entry is None and operation != "look":
                entry = File()
                folder.change(**{name: entry})
            elif operation == "empty":
                entry.content, entry.emptied = bytearray(), True
            self.opened[second] = entry
        elif operation == "mkdir":
            folder, name = self.parent(first)
            folder.change(**{name: Folder()})
        elif operation == "remove":
            folder, name = self.parent(first)
            folder.change(**{name: None})
        elif operation in ("rename", "exchange"):
            (folder, name), (to, other) = self.parent(first), self.parent(second)
            assert folder is to, f"{first} is moved to another folder"
            folder.change(**{name: self.find(second) if operation == "exchange" else None, other: self.find(first)})
        else:
            raise ValueError(operation)

    def write_what_is_left(self, target, draw):
        """Writes the disk's content as the machine finds it after a restart."""
        write_folder(self.root, target, draw)


def write_folder(folder, target, draw):
    target.mkdir()
    for name, entry in folder.left(draw).items():
        if isinstance(entry, Folder):
            write_folder(entry, target / name, draw)
        else:
            (target / name).write_bytes(entry.left(draw))


def read_changes(path):
    """Returns [(operation, first, second, data)] of a log."""
    log = path.read_bytes()
    changes, at = [], 0
    while at < len(log):
        end = log.index(b"\n", at)
        operation, first, second, size = log[at:end].decode().split("\t")
        at = end + 1 + int(size)
        changes.append((operation, first, second, log[end + 1:at]))
    return changes

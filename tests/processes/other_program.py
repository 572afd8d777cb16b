"""An agent of another program on the files of a team: it takes no locks and writes files in place."""

import json
import os
import random
import sys
import time
from pathlib import Path

ROOT, ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
TASKS, TEAM = ROOT / ".tasks", ROOT / ".team"
INBOX, CONFIG = TEAM / "inbox", TEAM / "config.json"
TORN, SENT, READ = [], [], []


def load(path):
    """A file of Brigade may appear and disappear, but must never be incomplete."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        TORN.append(f"{path}: {error}")
        return None


def save(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)


def scan_unclaimed_tasks():
    tasks = [load(path) for path in sorted(TASKS.glob("task_*.json"))]
    return [
        task
        for task in tasks
        if task and task.get("status") == "pending" and not task.get("owner") and not task.get("blockedBy")
    ]


def claim_task(task_id, owner):
    path = TASKS / f"task_{task_id}.json"
    task = load(path)
    if task:
        task["status"] = "in_progress"
        task["owner"] = owner
        save(path, task)


def complete_task(task_id):
    path = TASKS / f"task_{task_id}.json"
    task = load(path)
    if task and task.get("owner") == "pat":
        task["status"] = "completed"
        save(path, task)


def send(to, content):
    message = {"type": "message", "from": "pat", "content": content, "timestamp": time.time()}
    with open(INBOX / f"{to}.jsonl", "a") as file:
        file.write(json.dumps(message) + "\n")
    SENT.append([to, content])


def read_inbox(name):
    path = INBOX / f"{name}.jsonl"
    if not path.exists():
        return
    for line in path.read_text().strip().splitlines():
        READ.append(json.loads(line)["content"])
    path.write_text("")


def set_status(name, status):
    config = load(CONFIG) or {"team_name": "crew", "members": []}
    for member in config["members"]:
        if member["name"] == name:
            member["status"] = status
            break
    else:
        config["members"].append({"name": name, "role": "guest", "status": status, "desk": [1, 2]})
    save(CONFIG, config)


def main():
    held = []
    for turn in range(ROUNDS):
        if turn % 6 == 0:
            for task in scan_unclaimed_tasks()[-1:]:
                claim_task(task["id"], "pat")
                held.append(task["id"])
        if len(held) > 3:
            complete_task(held.pop(0))
        send(random.choice(["m1", "m2"]), f"<<pat {turn}>>")
        if turn % 3 == 0:
            send("pat", f"<<own {turn}>>")
        if turn % 4 == 0:
            read_inbox("pat")
        if turn % 5 == 0:
            set_status("pat", random.choice(["working", "idle"]))
        time.sleep(random.random() / 100)
    read_inbox("pat")
    set_status("pat", "working")
    json.dump({"torn": TORN, "sent": SENT, "read": READ, "held": held}, sys.stdout)


main()

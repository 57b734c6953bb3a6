"""The NRI plugin's process: one epoll loop that answers the runtime, tells it what the agent
changed, rings and shows its metrics."""

from __future__ import annotations

import logging
import os

from agent.host import door, peers
from agent.host.boot import boot_id
from agent.host.ending import Ending
from agent.host.notify import Notifier
from agent.model import failurepolicy
from agent.model import settings as options
from agent.model.settings import Settings
from agent.plugin import metrics
from agent.plugin.conflicts import Conflicts
from agent.plugin.containers import Containers
from agent.plugin.hooks import Hooks
from agent.plugin.launched import Launched
from agent.plugin.updater import Updater
from agent.proxy import upkeep
from agent.proxy.admission import Admission
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile
from agent.runtime.loop import Loop
from agent.runtime.nri import messages
from agent.runtime.nri.link import Link

DOOR_SECONDS = 3.0
"""How long another plugin of ours may take to end: the runtime waits 5 s for a registration."""

log = logging.getLogger(__name__)


def run(settings: Settings, launched: Launched | None) -> None:
    """Until SIGTERM or SIGINT, or, when the runtime started us, until it closes our socket. Raises
    LockedError while a relay or another plugin is on, SettingsError, OSError when the state folder
    can't be written."""
    path = options.socket_path(settings.nri_socket)
    pages_at = options.host_port(settings.nri_http) if settings.nri_http else None
    policies, deadlines = failurepolicy.of(settings)
    lock = door.for_plugin(settings.state_dir, DOOR_SECONDS)
    name = launched.name if launched else settings.nri_name
    index = launched.index if launched else settings.nri_index
    loop = Loop()
    snapshots = SnapshotFile(f"{settings.state_dir}/snapshot.json", boot_id())
    bell = Bell(f"{settings.state_dir}/doorbell.sock")
    grants, containers = Grants(), Containers()
    admission = Admission(snapshots, bell, grants, policies, settings.state_dir, messages.SAYS)
    conflicts = Conflicts(f"{index}-{name}", lambda: peers.of(path))
    hooks = Hooks(admission, deadlines, snapshots, containers, conflicts)
    link = Link(
        loop,
        path,
        name,
        index,
        hooks,
        given=launched.socket if launched else None,
        over=loop.stop if launched else None,
    )
    updater = Updater(loop, link, snapshots, containers, grants, bell, conflicts)
    notifier = Notifier(os.environ)
    with Ending(loop.stop):
        log.info("plugin %s-%s for %s", index, name, path)
        pages = upkeep.serve_pages(
            loop,
            pages_at,
            lambda: metrics.page(
                link, admission.outcomes, updater, conflicts, containers, bell, snapshots
            ),
        )
        upkeep.keep_alive(loop, notifier)
        link.start()
        if settings.nri_updates:
            updater.start()
        notifier.ready()
        loop.run()
        notifier.stopping()
    link.close()
    if pages is not None:
        pages.close()
    bell.close()
    loop.close()
    lock.release()

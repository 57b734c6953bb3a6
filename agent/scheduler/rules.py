"""Derives the rules of a scheduler from its settings and from the file with its arguments."""

from __future__ import annotations

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.model.objects import ObjectError
from agent.model.settings import plugin_args
from agent.model.settings.options import SettingsError
from agent.model.settings.plugin_args import Rules, SchedulerArgs
from agent.model.settings.scheduler import ExplainSettings, SchedulerSettings
from agent.scheduler.state.records import AgentSelector


def scheduler_args(path: str) -> SchedulerArgs:
    """Reads the arguments from a YAML or JSON file; the defaults of the proposals if `path` is
    empty. Raises SettingsError, which names file and field."""
    if not path:
        return plugin_args.defaults(Rules.PROPOSAL)
    try:
        return plugin_args.decode(documents.read(path))
    except (OSError, DocumentError, ObjectError) as error:
        raise SettingsError(f"scheduler-args-file {path}: {error}") from error


def allocator_rules(args: SchedulerArgs) -> AllocatorRules:
    """The allocation rules of all nodes."""
    return AllocatorRules(
        strategy=args.devices,
        shares=args.gpu_shares,
        unshared=args.unshared_gpus,
        scoring=args,
        zones=args.zones,
        gpu_objective=args.gpu_objective,
    )


def rules_of(settings: ExplainSettings) -> AllocatorRules:
    """The allocation rules of all nodes from the settings of a command. Raises SettingsError."""
    args = scheduler_args(settings.scheduler_args_file)
    return allocator_rules(args)


def agent_labels(text: str) -> dict[str, str]:
    """Parses KEY=VALUE separated by commas. Raises SettingsError."""
    labels = {}
    for each in filter(None, map(str.strip, text.split(","))):
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise SettingsError(f"agent-selector: {each[:60]!r} is not KEY=VALUE")
        labels[key] = value
    return labels


def agent_selector(settings: SchedulerSettings | ExplainSettings) -> AgentSelector:
    """Raises SettingsError."""
    return AgentSelector(agent_labels(settings.agent_selector), settings.release_namespace)

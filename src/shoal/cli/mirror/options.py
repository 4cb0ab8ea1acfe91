"""Options of `shoal mirror run` about topics and groups, named after MirrorMaker 2's settings."""

from typing import Any

import rich_click as click

from shoal.cli.shared.complete import complete_topics
from shoal.cli.shared.options import Command, properties_of
from shoal.mirror.config import GroupRules, TopicRules
from shoal.mirror.mm2.naming import POLICIES, Naming
from shoal.mirror.mm2.patterns import parse_list

_RULES = TopicRules()
_GROUPS = GroupRules()


_NAMES = (
    click.option(
        "--topics",
        help="Topics to copy: names or regular expressions, separated by commas.",
        shell_complete=complete_topics,
    ),
    click.option(
        "--topics-exclude",
        default=",".join(_RULES.exclude),
        show_default=True,
        help="Topics to exclude although --topics matches them.",
    ),
)
_NAMING = (
    click.option(
        "--replication-policy",
        type=click.Choice(POLICIES),
        default=_RULES.naming.policy,
        show_default=True,
        help="Keep topic names (identity), or prepend the source's alias (default).",
    ),
    click.option("--source-alias", default="source", show_default=True),
    click.option("--target-alias", default="target", show_default=True),
    click.option("--replication-policy-separator", default=".", show_default=True),
    click.option(
        "--rename",
        multiple=True,
        metavar="TOPIC=NAME",
        help="The name of one topic at the target; can be repeated.",
    ),
)
_CARE = (
    click.option(
        "--refresh-topics-interval-seconds",
        type=click.FloatRange(min=0),
        default=_RULES.refresh_s,
        show_default=True,
        help="How often to check for new topics and partitions; 0 for never.",
    ),
    click.option(
        "--sync-topic-configs/--no-sync-topic-configs",
        default=True,
        show_default=True,
        help="Apply the configs of source topics to target topics.",
    ),
    click.option(
        "--sync-topic-configs-interval-seconds",
        type=click.FloatRange(min=0.1),
        default=_RULES.sync_configs_s,
        show_default=True,
    ),
    click.option(
        "--config-properties-exclude",
        default=",".join(_RULES.configs_exclude),
        help="Topic configs that are not copied.",
    ),
    click.option(
        "--replication-factor",
        type=int,
        default=-1,
        help="Replication factor of created topics; by default the target's default.",
    ),
    click.option(
        "--follow-log-start",
        is_flag=True,
        help="Delete records at the target that are below the log start of the source.",
    ),
    click.option(
        "--sync-group-offsets",
        is_flag=True,
        help="Commit translated offsets of consumer groups at the target, if inactive there.",
    ),
    click.option("--groups", default=",".join(_GROUPS.include), show_default=True),
    click.option("--groups-exclude", default=",".join(_GROUPS.exclude), show_default=True),
    click.option(
        "--sync-group-offsets-interval-seconds",
        type=click.FloatRange(min=0.1),
        default=_GROUPS.sync_s,
        show_default=True,
    ),
    click.option(
        "--emit-heartbeats",
        is_flag=True,
        help="Write MirrorMaker 2 heartbeats to the target every second.",
    ),
)


def topic_options(command: Command) -> Command:
    """Add the options about topics and groups."""
    for option in reversed(_NAMES + _NAMING + _CARE):
        command = option(command)
    return command


def naming_options(command: Command) -> Command:
    """Add the options about topic names at the target."""
    for option in reversed(_NAMING):
        command = option(command)
    return command


def naming(options: dict[str, Any]) -> Naming:
    return Naming(
        policy=options["replication_policy"],
        source_alias=options["source_alias"],
        target_alias=options["target_alias"],
        separator=options["replication_policy_separator"],
        renames=properties_of(options["rename"]),
    )


def topic_rules(options: dict[str, Any]) -> TopicRules:
    return TopicRules(
        exclude=parse_list(options["topics_exclude"]),
        naming=naming(options),
        refresh_s=options["refresh_topics_interval_seconds"],
        sync_configs=options["sync_topic_configs"],
        sync_configs_s=options["sync_topic_configs_interval_seconds"],
        configs_exclude=parse_list(options["config_properties_exclude"]),
        replication_factor=options["replication_factor"],
        follow_log_start=options["follow_log_start"],
    )


def group_rules(options: dict[str, Any]) -> GroupRules:
    return GroupRules(
        sync=options["sync_group_offsets"],
        include=parse_list(options["groups"]),
        exclude=parse_list(options["groups_exclude"]),
        sync_s=options["sync_group_offsets_interval_seconds"],
    )

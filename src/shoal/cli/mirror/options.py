"""Options of `shoal mirror run` about topics and groups, named after MirrorMaker 2's settings."""

from typing import Any

import rich_click as click

from shoal.cli.shared.options import Command, properties_of
from shoal.mirror.config import GroupRules, TopicRules
from shoal.mirror.mm2.naming import POLICIES, Naming
from shoal.mirror.mm2.patterns import listed

_RULES = TopicRules()
_GROUPS = GroupRules()


_NAMES = (
    click.option(
        "--topics", help="Topics to copy: names or regular expressions, separated by commas."
    ),
    click.option(
        "--topics-exclude",
        default=",".join(_RULES.exclude),
        show_default=True,
        help="Topics not to copy, though --topics matches them.",
    ),
)
_NAMING = (
    click.option(
        "--replication-policy",
        type=click.Choice(POLICIES),
        default=_RULES.naming.policy,
        show_default=True,
        help="Keep topics' names, or put the source's alias before them.",
    ),
    click.option("--source-alias", default="source", show_default=True),
    click.option("--target-alias", default="target", show_default=True),
    click.option("--replication-policy-separator", default=".", show_default=True),
    click.option(
        "--rename",
        multiple=True,
        metavar="TOPIC=NAME",
        help="What one topic is called at the target; may be repeated.",
    ),
)
_CARE = (
    click.option(
        "--refresh-topics-interval-seconds",
        type=click.FloatRange(min=0),
        default=_RULES.refresh_s,
        show_default=True,
        help="How often to look for new topics and partitions; 0 for never.",
    ),
    click.option(
        "--sync-topic-configs/--no-sync-topic-configs",
        default=True,
        show_default=True,
        help="Let the settings of the target's topics follow those of the source's.",
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
        help="Settings of topics that stay the target's own.",
    ),
    click.option(
        "--replication-factor",
        type=int,
        default=-1,
        help="Of topics that are made; the target's default if it is not given.",
    ),
    click.option(
        "--follow-log-start",
        is_flag=True,
        help="Delete at the target what the source has deleted at the start of its log.",
    ),
    click.option(
        "--sync-group-offsets",
        is_flag=True,
        help="Bring positions of consumer groups to the target, where they are not active.",
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
        help="Write MirrorMaker 2's heartbeats to the target each second.",
    ),
)


def topic_options(command: Command) -> Command:
    """Which topics and groups, and what is done for them."""
    for option in reversed(_NAMES + _NAMING + _CARE):
        command = option(command)
    return command


def naming_options(command: Command) -> Command:
    """What topics are called at the target."""
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
        exclude=listed(options["topics_exclude"]),
        naming=naming(options),
        refresh_s=options["refresh_topics_interval_seconds"],
        sync_configs=options["sync_topic_configs"],
        sync_configs_s=options["sync_topic_configs_interval_seconds"],
        configs_exclude=listed(options["config_properties_exclude"]),
        replication_factor=options["replication_factor"],
        follow_log_start=options["follow_log_start"],
    )


def group_rules(options: dict[str, Any]) -> GroupRules:
    return GroupRules(
        sync=options["sync_group_offsets"],
        include=listed(options["groups"]),
        exclude=listed(options["groups_exclude"]),
        sync_s=options["sync_group_offsets_interval_seconds"],
    )

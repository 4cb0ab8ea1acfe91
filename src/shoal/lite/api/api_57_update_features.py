"""UpdateFeatures (57), versions 0 to 2 (KIP-584).

Behaviour
- Changes what the cluster has agreed on: all of the request, or nothing.
- A feature that there is not, a level that brokers cannot do, and a lower level that was not
  asked for as a downgrade: INVALID_UPDATE_VERSION.

Versions
- 1 kinds of upgrades, and validation alone. 2 one error for all.
"""

from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.metadata.data.requests import SET, AlterConfigs, ConfigChange
from shoal.lite.metadata.rules.commands import change_features
from shoal.lite.metadata.rules.features import FEATURE
from shoal.wire.api_keys import ApiKey

_UPGRADE = 1
_FIRST_WITHOUT_RESULTS = 2


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    wishes = body.feature_updates
    changes = [ConfigChange(one.feature, SET, str(one.max_version_level)) for one in wishes]
    code, message = Code.NONE, None
    try:
        _check_downgrades(core, wishes)
        change_features(changes)
        if not getattr(body, "validate_only", False):
            await core.controller.submit(AlterConfigs(FEATURE, "", changes))
    except Refused as refused:
        code, message = refused.code, str(refused)
    results = [
        {"feature": one.feature, "error_code": code, "error_message": message} for one in wishes
    ]
    is_one_for_all = request.version >= _FIRST_WITHOUT_RESULTS
    return request.answer(
        error_code=code if is_one_for_all else Code.NONE,
        error_message=message if is_one_for_all else None,
        results=[] if is_one_for_all else results,
    )


def _check_downgrades(core: BrokerCore, wishes: Any) -> None:
    levels = core.state.features()
    for wish in wishes:
        may_fall = getattr(wish, "allow_downgrade", False) or (
            getattr(wish, "upgrade_type", _UPGRADE) != _UPGRADE
        )
        if wish.max_version_level < levels.get(wish.feature, 0) and not may_fall:
            raise Refused(
                Code.INVALID_UPDATE_VERSION,
                f"Invalid update version {wish.max_version_level} for feature {wish.feature}. "
                "Can't downgrade the version of this feature without setting the upgrade type to "
                "either safe or unsafe downgrade.",
            )


API = register(ApiKey.UPDATE_FEATURES, 0, 2, handle)

"""UpdateFeatures (57), versions 0 to 2 (KIP-584).

Behaviour
- Changes the finalized features: all changes of the request, or none.
- An unknown feature, a level that brokers do not support, and a lower level that was not requested
  as a downgrade: INVALID_UPDATE_VERSION.

Versions
- 1 types of upgrades, and `validate_only`. 2 one error for all.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.metadata.data.requests import SET, AlterConfigs, ConfigEdit
from shoal.lite.metadata.rules.commands import change_features
from shoal.lite.metadata.rules.features import FEATURE
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.cluster import (
        UpdateFeaturesRequest,
        UpdateFeaturesRequestFeatureUpdateKey,
        UpdateFeaturesResponse,
        UpdateFeaturesResponseUpdatableFeature,
    )

_UPGRADE = 1
_FIRST_WITHOUT_RESULTS = 2


async def handle(
    core: BrokerCore, request: "ApiRequest[UpdateFeaturesRequest, UpdateFeaturesResponse]"
) -> Answer:
    body = request.body()
    updates = body.feature_updates
    changes = [ConfigEdit(one.feature, SET, str(one.max_version_level)) for one in updates]
    code, message = Code.NONE, None
    try:
        _check_downgrades(core, updates, request.version)
        change_features(changes)
        if request.version < 1 or not body.validate_only:
            await core.controller.submit(AlterConfigs(FEATURE, "", changes))
    except ApiError as error:
        code, message = error.code, str(error)
    results: list[UpdateFeaturesResponseUpdatableFeature] = [
        {"feature": one.feature, "error_code": code, "error_message": message} for one in updates
    ]
    is_one_for_all = request.version >= _FIRST_WITHOUT_RESULTS
    return request.answer(
        {
            "error_code": code if is_one_for_all else Code.NONE,
            "error_message": message if is_one_for_all else None,
            "results": [] if is_one_for_all else results,
        }
    )


def _check_downgrades(
    core: BrokerCore, updates: "Sequence[UpdateFeaturesRequestFeatureUpdateKey]", version: int
) -> None:
    levels = core.state.features()
    for update in updates:
        can_downgrade = update.allow_downgrade if version == 0 else update.upgrade_type != _UPGRADE
        if update.max_version_level < levels.get(update.feature, 0) and not can_downgrade:
            raise ApiError(
                Code.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.max_version_level} for feature {update.feature}. "
                "Can't downgrade the version of this feature without setting the upgrade type to "
                "either safe or unsafe downgrade.",
            )


API = register(ApiKey.UPDATE_FEATURES, 0, 2, handle)

"""Credentials in configs and overrides."""

import pytest

from vit.files.credentials import masked, masked_keys, masked_override, restored

OVERRIDES = {  # override -> what is saved
    "recipe.epochs=3": "recipe.epochs=3",
    "model.class_token=false": "model.class_token=false",
    "distill=token": "distill=token",
    "+data.token=sesame": "+data.token='***'",
    "++logger.comet.api_key='a b'": "++logger.comet.api_key='***'",
    "logger.comet.api_key=null": "logger.comet.api_key=null",
    "+logger.own.db_password=x": "+logger.own.db_password='***'",
    "+logger.own.secret_key=x": "+logger.own.secret_key='***'",
    "+data.token=${oc.env:TOKEN}": "+data.token=${oc.env:TOKEN}",
    "+logger.m.tracking_uri=http://bob:p@w@host:5000/x": "+logger.m.tracking_uri=http://***@host:5000/x",
    "+data.urls=[https://t@host/a,https://host/b@c]": "+data.urls=[https://***@host/a,https://host/b@c]",
    "+logger.c={_target_:a.B,api_key:4f2a,project:x}": "+logger.c={_target_:a.B,api_key:'***',project:x}",
    "+logger.c={'api_key':'4f,2a'}": "+logger.c={'api_key':'***'}",
    "+logger.c={api_key:null,token:${oc.env:T}}": "+logger.c={api_key:null,token:${oc.env:T}}",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_is_saved_without_its_credentials(override):
    assert masked_override(override) == OVERRIDES[override]
    assert masked_override(OVERRIDES[override]) == OVERRIDES[override]


def test_a_config_is_saved_without_credentials_and_completed_from_another_one():
    config = {"data": {"token": "sesame", "root": "photos", "class_token": "x"}, "seed": 0, "overrides": ["+a.token=b"],
              "logger": [{"uri": "sqlite://me:pw@host/db"}, {"api_key": "k"}], "model": {"token": False}}
    saved = masked(config)
    assert saved == {"data": {"token": "***", "root": "photos", "class_token": "x"}, "seed": 0,
                     "overrides": ["+a.token='***'"], "logger": [{"uri": "sqlite://***@host/db"}, {"api_key": "***"}],
                     "model": {"token": False}}
    assert masked_keys({**saved, "overrides": []}) == ["data.token", "logger.0.uri", "logger.1.api_key"]
    assert restored({**saved, "overrides": config["overrides"]}, {**config, "seed": 1}) == config
    assert restored({"_target_": "***", "save_dir": "***"}, {"_target_": "os.system", "save_dir": "/"}) == {
        "_target_": "***", "save_dir": "***"}  # a stored config decides nothing but credentials
    assert masked_keys(restored(saved, {"data": {"token": "again"}, "logger": []})) == ["logger.0.uri",
                                                                                      "logger.1.api_key"]

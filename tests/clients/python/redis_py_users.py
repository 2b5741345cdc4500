"""redis-py: users and their rules, logins, ACL LOG, and the ACL file."""

import hashlib

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry

from check import TO, run

NAME, PASSWORD = "library", "a password"
# A name that is not UTF-8.
BINARY = b"\xff\xfe\x01library"
HEX = set("0123456789abcdef")


def client(protocol, user=None, password=None, text=True):
    # By default, redis-py repeats a failed login for seconds.
    once = Retry(NoBackoff(), 0)
    return redis.Redis(
        **TO, protocol=protocol, username=user, password=password, decode_responses=text, retry=once
    )


def raises(kind, part, body, *args, **kwargs):
    """Checks that `body` raises exactly this class of exception."""
    try:
        body(*args, **kwargs)
    except redis.RedisError as error:
        assert type(error) is kind and part in str(error), repr(error)
    else:
        raise AssertionError(f"no {kind.__name__}: {args}")


def denied(part, body, *args):
    raises(NoPermissionError, "this user has no permissions " + part, body, *args)


def refused(body, *args):
    raises(AuthenticationError, "invalid username-password pair or user is disabled", body, *args)


def ended(body, *args):
    """Checks that `body` fails because the server has closed its connection. Redis-py may notice
    this before it sends the command. It then connects again, and the login fails."""
    try:
        body(*args)
    except redis.ConnectionError:
        # The class of failed logins is derived from this one.
        return
    raise AssertionError(f"a deleted user's command has run: {args}")


def allow(admin, name, **rules):
    assert admin.acl_setuser(name, enabled=True, passwords=["+" + PASSWORD], **rules) is True


def hashed(password):
    return hashlib.sha256(password.encode()).hexdigest()


def for_both_protocols(check):
    """Returns a function that runs `check` with RESP2 and with RESP3. At the start of each run, the
    user does not exist."""
    def both():
        for protocol in (2, 3):
            admin = client(protocol)
            admin.acl_deluser(NAME)
            check(protocol, admin)
            admin.acl_deluser(NAME)

    both.__name__ = check.__name__
    return both


@for_both_protocols
def rules_are_set_and_read(protocol, admin):
    assert admin.acl_getuser(NAME) is None
    assert admin.acl_setuser(NAME) is True
    user = admin.acl_getuser(NAME)
    assert not user["enabled"] and "off" in user["flags"] and user["passwords"] == [], user
    assert user["categories"] == ["-@all"] and user["commands"] == user["selectors"] == [], user
    assert admin.acl_setuser(
        NAME,
        enabled=True,
        reset=True,
        passwords=["+" + PASSWORD, "+other"],
        categories=["+@set", "+@hash", "-@geo"],
        commands=["+get", "+mget", "-hset"],
        keys=["cache:*", "objects:*"],
        channels=["message:*"],
        selectors=[("+set", "%W~written:*")],
    )
    user = admin.acl_getuser(NAME)
    assert user["enabled"] and "on" in user["flags"] and "nopass" not in user["flags"], user
    # The server omits rules that other rules imply.
    assert set(user["categories"]) == {"-@all", "+@set", "+@hash"}, user
    assert set(user["commands"]) == {"+get", "+mget", "-hset"}, user
    assert user["keys"] == ["~cache:*", "~objects:*"] and user["channels"] == ["&message:*"], user
    assert user["passwords"] == [hashed(PASSWORD), hashed("other")], user
    selector = user["selectors"][0]
    if protocol == 2:
        selector = dict(zip(selector[::2], selector[1::2]))
    assert selector == {"commands": "-@all +set", "keys": "%W~written:*", "channels": ""}, selector
    # Removes a password given as text. Adds and removes passwords given as hashes.
    third = hashed("third")
    assert admin.acl_setuser(NAME, enabled=True, passwords="-other", hashed_passwords="+" + third)
    assert admin.acl_getuser(NAME)["passwords"] == [hashed(PASSWORD), third]
    assert admin.acl_setuser(NAME, enabled=True, hashed_passwords=["-" + third])
    assert admin.acl_getuser(NAME)["passwords"] == [hashed(PASSWORD)]
    why = "password you are trying to remove"
    raises(ResponseError, why, admin.acl_setuser, NAME, passwords=["-absent"])
    why = "Unknown command or category"
    raises(ResponseError, why, admin.acl_setuser, NAME, commands=["+nosuch"])
    assert admin.acl_setuser(NAME, enabled=True, nopass=True)
    assert "nopass" in admin.acl_getuser(NAME)["flags"]


@for_both_protocols
def listings_have_their_types(_protocol, admin):
    assert admin.acl_whoami() == "default"
    assert admin.acl_users() == ["default"]
    admin.acl_setuser(NAME, enabled=True, nopass=True, commands=["+get"], keys=["a"])
    assert admin.acl_users() == ["default", NAME]
    lines = admin.acl_list()
    assert lines[1] == f"user {NAME} on nopass ~a resetchannels -@all +get", lines
    assert {"read", "write", "set", "scripting"} <= set(admin.acl_cat())
    assert "hset" in admin.acl_cat("hash") and "get" not in admin.acl_cat("hash")
    raises(ResponseError, "Unknown category", admin.acl_cat, "nosuch")
    for bits, length in ((None, 64), (5, 2), (1024, 256)):
        password = admin.acl_genpass(bits)
        assert len(password) == length and set(password) <= HEX, password
    assert admin.acl_genpass() != admin.acl_genpass()
    lines = admin.acl_help()
    assert lines[0].startswith("ACL <subcommand>"), lines
    assert any(line.startswith("SETUSER ") for line in lines), lines
    assert admin.acl_deluser(NAME, "nobody") == 1 and admin.acl_users() == ["default"]


@for_both_protocols
def permissions_are_tried_without_running(_protocol, admin):
    admin.acl_setuser(NAME, enabled=True, nopass=True, commands=["+set"], keys=["a*"])
    assert admin.acl_dryrun(NAME, "set", "a", "1") == "OK"
    assert "'get'" in admin.acl_dryrun(NAME, "get", "a")
    assert "'b'" in admin.acl_dryrun(NAME, "set", "b", "1")
    assert not admin.exists("a")
    raises(ResponseError, "'nobody' not found", admin.acl_dryrun, "nobody", "get", "a")


@for_both_protocols
def logins_and_denials_have_their_exceptions(protocol, admin):
    allow(admin, NAME, commands=["+get", "+set", "+acl|whoami"], keys=["open"], channels=["news"])
    for user, password in ((NAME, "wrong"), ("nobody", PASSWORD), (NAME, None)):
        refused(client(protocol, user, password).ping)
    own = client(protocol, NAME, PASSWORD)
    assert own.acl_whoami() == NAME
    assert own.set("open", "1") is True and own.get("open") == "1"
    denied("to run the 'incrby' command", own.incr, "open")
    denied("to access one of the keys", own.get, "secret")
    denied("to run the 'acl|list' command", own.acl_list)
    # A transaction with a denied command does not run.
    admin.acl_setuser(NAME, enabled=True, commands=["+multi", "+exec", "+publish"])
    pipeline = own.pipeline().set("open", "2").get("secret")
    denied("to access one of the keys", pipeline.execute)
    assert own.get("open") == "1"
    assert own.publish("news", "x") == 0
    denied("to access one of the channels", own.publish, "other", "x")
    # The connection's user changes.
    assert own.auth("wrong", "default") is True
    assert own.acl_whoami() == "default"
    # Deleting a user closes the user's connections. The user can't log in again.
    gone = client(protocol, NAME, PASSWORD)
    assert gone.get("open") == "1" and admin.acl_deluser(NAME) == 1
    ended(gone.get, "open")
    refused(gone.get, "open")


@for_both_protocols
def the_log_has_its_fields(protocol, admin):
    assert admin.acl_log_reset() is True and admin.acl_log() == []
    allow(admin, NAME, commands=["+get"], keys=["open"])
    own = client(protocol, NAME, PASSWORD)
    for _ in range(3):
        denied("to access one of the keys", own.get, "secret")
    denied("to run the 'hset' command", own.hset, "open", "a", "1")
    refused(client(protocol, NAME, "wrong").ping)
    # When it connects, redis-py sends commands that this user may not run.
    entries = [entry for entry in admin.acl_log() if not entry["object"].startswith("client|")]
    fields = [(entry["count"], entry["reason"], entry["object"]) for entry in entries]
    login = "AUTH" if protocol == 2 else "HELLO"
    assert fields == [(1, "auth", login), (1, "command", "hset"), (3, "key", "secret")], fields
    for entry in entries:
        assert entry["context"] == "toplevel" and entry["username"] == NAME, entry
        assert isinstance(entry["age-seconds"], float) and 0 <= entry["age-seconds"] < 60, entry
    info = entries[2]["client-info"]
    if protocol == 2:
        assert info["cmd"] == "get" and info["user"] == NAME and info["id"] > 0, info
    else:
        assert f" cmd=get user={NAME} " in info, info
    assert len(admin.acl_log(1)) == 1
    assert admin.acl_log_reset() is True and admin.acl_log() == []


@for_both_protocols
def users_are_saved_and_loaded(protocol, admin):
    allow(admin, NAME, commands=["+get"], keys=["open"])
    saved = admin.acl_list()
    assert admin.acl_save() is True
    admin.acl_setuser(NAME, enabled=True, commands=["+set"])
    admin.acl_setuser("unsaved")
    assert admin.acl_list() != saved
    assert admin.acl_load() is True and admin.acl_list() == saved
    assert client(protocol, NAME, PASSWORD).get("open") == admin.get("open")
    admin.acl_deluser(NAME)
    assert admin.acl_save() is True


def names_are_bytes():
    for protocol in (2, 3):
        admin = client(protocol, text=False)
        allow(admin, BINARY, commands=["+acl"])
        # With RESP2, redis-py decodes these replies to text.
        shown = BINARY.decode(errors="replace") if protocol == 2 else BINARY
        assert shown in admin.acl_users(), admin.acl_users()
        assert admin.acl_getuser(BINARY)["passwords"] == [hashed(PASSWORD)]
        own = client(protocol, BINARY, PASSWORD, text=False)
        assert own.acl_whoami() == shown, own.acl_whoami()
        assert own.acl_dryrun(BINARY, "acl", "users") == b"OK"
        denied("to run the 'get' command", own.get, b"\xff")
        refused(client(protocol, BINARY, "wrong").ping)
        assert admin.acl_log(1)[0]["username"] == BINARY.decode(errors="replace")
        assert admin.acl_save() is True and admin.acl_load() is True
        assert shown in admin.acl_users()
        assert admin.acl_deluser(BINARY) == 1 and admin.acl_getuser(BINARY) is None
        for name in (b"with space", b"with\0null"):
            why = "can't contain spaces or null characters"
            raises(ResponseError, why, admin.acl_setuser, name)
        assert admin.acl_save() is True


run(
    rules_are_set_and_read,
    listings_have_their_types,
    permissions_are_tried_without_running,
    logins_and_denials_have_their_exceptions,
    the_log_has_its_fields,
    users_are_saved_and_loaded,
    names_are_bytes,
)

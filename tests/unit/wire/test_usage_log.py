import json

from baton.wire import usage_log
from baton.wire.v1 import failure_pb2, quota_pb2

SETTLED_MS = 1_800_000_000_123


def line(request_id="r1", tenant="acme", provisional=False, num_output_tokens=20):
    record = quota_pb2.UsageRecord(
        request_id=request_id,
        tenant=tenant,
        key_id="key_1",
        model="m",
        num_prompt_tokens=10,
        num_output_tokens=num_output_tokens,
        finish_reason="stop",
        wall_us=7,
        stages=[
            failure_pb2.StageTime(name="auth", duration_us=3),
            failure_pb2.StageTime(name="decode", duration_us=4),
        ],
        provisional=provisional,
    )
    return usage_log.from_record(record, SETTLED_MS)


def test_line_is_plain_json_with_numbers_and_named_stages():
    encoded = json.loads(usage_log.encode(line()))
    assert encoded["num_output_tokens"] == 20
    assert encoded["stages_us"] == {"auth": 3, "decode": 4}
    assert "provisional" not in encoded
    assert line().num_tokens == 30
    assert line().file_name == "usage-2027-01-15.jsonl"


def test_file_reads_back_without_its_torn_last_line(tmp_path):
    file = tmp_path / "usage-2027-01-15.jsonl"
    file.write_bytes(usage_log.encode(line()) + usage_log.encode(line("r2"))[:20])
    assert list(usage_log.read_file(file)) == [line()]
    assert usage_log.files(tmp_path) == [file]
    assert list(usage_log.read_file(tmp_path / "none")) == []


def test_bill_has_one_line_per_request_and_the_final_one_wins():
    lapsed, final = line(provisional=True, num_output_tokens=5), line()
    assert usage_log.final_lines([lapsed, final]) == [final]
    assert usage_log.final_lines([final, lapsed]) == [final]
    assert usage_log.final_lines([final, final]) == [final]
    assert len(usage_log.final_lines([final, line(tenant="other")])) == 2


def test_a_line_has_the_time_of_engines_and_its_wasted_parts_where_there_are_any() -> None:
    engine = failure_pb2.EngineTime(
        prefill_us=5, decode_us=6, kv_byte_ms=7, preempted_us=1, cancelled_us=2
    )
    record = quota_pb2.UsageRecord(request_id="r1", tenant="acme", engine=engine)
    encoded = json.loads(usage_log.encode(usage_log.from_record(record, SETTLED_MS)))
    assert (encoded["prefill_us"], encoded["decode_us"], encoded["kv_byte_ms"]) == (5, 6, 7)
    assert encoded["wasted_us"] == {"cancelled": 2, "preempted": 1}

"""The choices of one request inside the engine: forks of a prompt, beams of a search.

The leader's prompt gets done in one of two ways: a step computed it here (`take_sampled`), or a
prefill worker sent it (`start`). Then the forks share its blocks and go on with tokens of their own
from the same logits; or the beam search begins, and its results go out as leader and forks have
credit. An aborted leader still computes the prompt while a fork waits for it.
"""

import msgspec

from baton.engine.protocol.batch import RowLogprobs
from baton.engine.protocol.messages import Progress, Start
from baton.engine.protocol.reasons import FinishReason
from baton.engine.sequence.beam_search import BeamSearch, Survivor
from baton.engine.sequence.sequence import Sequence, SequenceGroup, SequenceState
from baton.engine.step.admission import end_ids, max_total_tokens
from baton.engine.step.engine_state import EngineState
from baton.engine.step.step_plan import ScheduledSequence

# The token of one sampled row, with its logprobs where they are wanted.
Sampled = tuple[int, RowLogprobs | None]


class ParallelSampling:
    """Runs the groups of one engine; the state of each is the `group` of its sequences."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def form_group(self, leader: Sequence) -> None:
        """Make the leader's forks, which wait for its prompt."""
        state, request = self._state, leader.request
        group = leader.group = SequenceGroup(leader, [])
        if request.sampling.beam_width:
            max_tokens = max_total_tokens(leader, state.info) - leader.num_prompt_tokens
            ends = end_ids(request.sampling, state.info)
            group.search = BeamSearch(request.sampling, ends, max_tokens)
        for fork in request.forks:
            own = msgspec.structs.replace(request, seq_id=fork.seq_id, choice=fork.choice, forks=())
            seq = Sequence(own, state.sequences.next_arrival(), leader.table.hash_chain[0])
            seq.state = SequenceState.FORKING
            # The leader reports the logprobs of the prompt.
            seq.next_prompt_logprob = seq.num_prompt_tokens
            seq.group = group
            group.forks.append(seq)
            state.add(seq)

    def abort(self, seq: Sequence, group: SequenceGroup) -> None:
        """End one sequence of a group, in any state."""
        if seq is group.leader:
            group.is_leader_aborted = True
        else:
            group.leave(seq)
            self._state.drop(seq)
        if group.is_leader_aborted and not group.forks:
            self._drop_leader(group)

    def finish(
        self, seq: Sequence, group: SequenceGroup, reason: FinishReason, message: str = ""
    ) -> None:
        """End a sequence of a group by itself; with the leader, all forks that wait for it."""
        if seq is not group.leader:
            group.leave(seq)
            self._state.finish(seq, reason, message)
            return
        for fork in list(group.forks):
            self.finish(fork, group, reason, message)
        if group.is_leader_aborted:
            self._drop_leader(group)
        else:
            self._free_beams(group)
            group.leave(seq)
            self._state.finish(seq, reason, message)

    def start(self, leader: Sequence, group: SequenceGroup, command: Start) -> None:
        """Go on from a prompt and first tokens that came from a prefill worker."""
        state = self._state
        state.manager.end_promise(leader)
        if group.search is not None:
            state.scheduler.run(leader)
            state.sequences.watch_deadline(leader)
            self._advance(group, [list(zip(command.top_ids, command.top_logprobs, strict=True))])
            return
        tokens = dict(command.fork_tokens)
        for fork in group.dissolve():
            token = tokens.get(fork.request.seq_id)
            if token is None:  # a prefill worker that knows no forks
                state.scheduler.wait(fork)
                continue
            state.manager.fork(leader, fork)
            state.go_on(fork, token)
        if group.is_leader_aborted:
            state.drop(leader)
        else:
            state.go_on(leader, command.first_token)

    def take_sampled(
        self, scheduled: ScheduledSequence, group: SequenceGroup, sampled: list[Sampled]
    ) -> None:
        """Take a group's next tokens: its prompt is done, or the sequence is a beam."""
        if group.search is None:
            self._share_prompt(scheduled, group, sampled)
        elif scheduled.seq.is_beam or not group.beams:
            if not group.beams:
                self._report_prompt_done(group.leader)
            [(_, logprobs)] = sampled
            assert logprobs is not None
            group.tops.append(list(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)))
            if len(group.tops) == len(group.live):
                tops, group.tops = group.tops, []
                self._advance(group, tops)
        # Else the prompt was computed again, for beams that lost their blocks with it.

    def emit(self, seq: Sequence) -> None:
        """Report as much of a search's result as the sequence has credit for."""
        assert seq.result is not None
        tokens = seq.result.tokens
        for token in tokens[seq.num_output_tokens : seq.credit]:
            self._state.take_token(seq, token, None)
        if seq.num_output_tokens == len(tokens):
            self._state.finish(seq, seq.result.reason)

    def _share_prompt(
        self, scheduled: ScheduledSequence, group: SequenceGroup, sampled: list[Sampled]
    ) -> None:
        """Admitted forks go on beside the leader; the others queue as sequences of their own."""
        state, leader = self._state, scheduled.seq
        for fork in group.dissolve():
            if fork not in scheduled.forks:
                state.scheduler.wait(fork)
            elif leader.request.kind != "prefill":
                # Before the leader's token: it may be its last.
                state.manager.fork(leader, fork)
                state.scheduler.run(fork)
                fork.was_started = True
        (token, logprobs), *others = sampled
        if group.is_leader_aborted:
            state.drop(leader)
        elif leader.is_parked:
            state.scheduler.requeue(leader)
        else:
            state.take_token(leader, token, logprobs)
        for fork, (token, logprobs) in zip(scheduled.forks, others, strict=True):
            state.take_token(fork, token, logprobs)

    def _report_prompt_done(self, leader: Sequence) -> None:
        """Report that the prompt is done: the first token may be long in coming."""
        progress = Progress(leader.request.seq_id, leader.num_computed_tokens)
        self._state.events.progress.append(progress)

    def _advance(self, group: SequenceGroup, tops: list[list[tuple[int, float]]]) -> None:
        """One step of a search: `tops` are the likeliest next tokens of each live beam."""
        assert group.search is not None
        parents = group.live

        def tokens_of(beam: int) -> list[int]:
            parent = parents[beam]
            tokens: list[int] = parent.tokens(parent.num_prompt_tokens, parent.num_tokens).tolist()
            return tokens

        survivors = group.search.advance(tops, tokens_of)
        if group.search.is_done:
            self._finish_search(group, group.search)
        else:
            group.beams = self._branch(group, survivors)

    def _branch(self, group: SequenceGroup, survivors: list[Survivor]) -> list[Sequence]:
        """The beams of the next step. A parent becomes its last child, the others fork."""
        manager, parents = self._state.manager, group.live
        last_child = {survivor.parent: index for index, survivor in enumerate(survivors)}
        beams: list[Sequence] = []
        for index, survivor in enumerate(survivors):
            beam = parents[survivor.parent]
            if beam is group.leader or last_child[survivor.parent] != index:
                parent, beam = beam, beam.branch()
                manager.fork(parent, beam)
            beams.append(beam)
        for index, parent in enumerate(parents):
            if parent is not group.leader and index not in last_child:
                manager.free(parent)
        for beam, survivor in zip(beams, survivors, strict=True):
            beam.append(survivor.token)
        return beams

    def _finish_search(self, group: SequenceGroup, search: BeamSearch) -> None:
        """Free all blocks; the results are the choices, best first."""
        leader = group.leader
        choices = [leader.request.seq_id, *(fork.seq_id for fork in leader.request.forks)]
        results = dict(zip(choices, search.results, strict=True))
        self._free_beams(group)
        self._state.scheduler.remove(leader)
        self._state.manager.free(leader)
        takers = group.dissolve()
        if group.is_leader_aborted:
            self._state.sequences.remove(leader)
        else:
            takers.insert(0, leader)
        for seq in takers:
            seq.state = SequenceState.EMITTING
            seq.result = results[seq.request.seq_id]
            self.emit(seq)

    def _drop_leader(self, group: SequenceGroup) -> None:
        self._free_beams(group)
        group.leave(group.leader)
        self._state.drop(group.leader)

    def _free_beams(self, group: SequenceGroup) -> None:
        for beam in group.beams:
            self._state.manager.free(beam)
        group.beams = []

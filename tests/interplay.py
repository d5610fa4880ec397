"""Which features meet which capabilities: the tests that run each pair, or the sentence that refuses it.

A capability that arrives adds its column; no cell is empty (`tests/style/test_interplay.py`).
"""

from typing import NamedTuple


class Runs(NamedTuple):
    """Both together are run by these tests, FILE::NAME below tests/."""

    tests: tuple[str, ...]


class Refuses(NamedTuple):
    """Both together are refused with a sentence that says this; a test sees it."""

    sentence: str
    test: str


FEATURES = (
    *("LoRA", "grammar", "n > 1", "drafts", "sessions", "prefix hit", "preemption", "snapshot", "embeddings"),
    *("deterministic", "two models", "keys"),
)
BITS = "rows/test_row_inputs.py"
EVENTS = "rows/test_row_events.py"
BESIDE = "speech/test_recordings_beside.py"
WRITES_DOWN = Refuses("This model writes down recordings", f"{BESIDE}::test_everything_else_is_refused_by_name")
SPOKEN = "speech/test_speaking_beside.py"
SPEAKS = Refuses("speaks and writes no text", f"{SPOKEN}::test_everything_else_is_refused_by_name")
NO_SPOKEN_SESSION = Refuses("speaks and writes no text", f"{SPOKEN}::test_sessions_are_refused")
TIERS = "tiers/test_tiers_with_features.py"
NO_SESSION = Refuses("A session's text reads no rows", f"{EVENTS}::test_models_and_texts_without_rows_refuse_them")
CHATS = "images/test_chats.py"
CHAT_EVENTS = "images/test_chat_events.py"
NO_IMAGES = Refuses("A session's text reads no rows of images", f"{CHATS}::test_sessions_refuse_images")

TRAINED = "models/test_trained_drafts.py"
# Sessions guess with two models of their own, or not at all.
NO_DRAFTER = Refuses(
    "a SpeculativeEngine takes a smaller model", f"{TRAINED}::test_texts_of_two_models_take_no_drafter"
)

PAGED = "offload/test_paged_with_features.py"
NO_PAGER = Refuses("weights cannot be offloaded", f"{PAGED}::test_sessions_have_their_weights_in_memory")

STREAMED = "cuda/test_streamed_with_features.py"
RANKS = "ranks/test_ranks_with_features.py"
PROCESSES = "ranks/test_tensor_parallel.py"
FAULTS = "ranks/test_rank_faults.py"
NO_PAGES = Refuses("sessions and snapshots run on one rank", f"{PROCESSES}::test_sessions_and_pages_are_refused")

SLEEP = "engine/test_sleeping.py"
SLEPT = Runs((f"{SLEEP}::test_features_after_a_sleep",))
HELD = Refuses("or sessions hold its pages", f"{SLEEP}::test_what_works_or_would_lose_something_does_not_sleep")

COLUMNS: dict[str, dict[str, Runs | Refuses]] = {
    "rows as input": {
        "LoRA": Runs((f"{BITS}::test_adapters_change_what_is_made_of_rows",)),
        "grammar": Runs((f"{BITS}::test_grammars_after_rows",)),
        "n > 1": Runs((f"{EVENTS}::test_choices_of_a_prompt_with_rows",)),
        "drafts": Runs((f"{EVENTS}::test_drafts_change_no_text",)),
        "sessions": NO_SESSION,
        "prefix hit": Runs(
            (
                f"{EVENTS}::test_equal_images_share_pages_and_others_do_not",
                f"{EVENTS}::test_a_queued_prompt_whose_pages_are_evicted_waits_for_its_rows",
            )
        ),
        "preemption": Runs((f"{EVENTS}::test_preempted_sequences_take_their_rows_again",)),
        "snapshot": NO_SESSION,  # only sessions have snapshots
        "embeddings": Runs((f"{EVENTS}::test_hidden_rows_of_a_prompt_with_rows",)),
        "deterministic": Runs((f"{BITS}::test_a_batch_gives_the_bits_of_each_alone",)),
        "two models": Runs((f"{BITS}::test_two_models_keep_rows_apart",)),
        "keys": Runs((f"{EVENTS}::test_rows_are_shared_under_one_salt_only",)),
    },
    "images in chats": {
        # Those of Gemma 3's text models run: test_adapters_of_text_models_leave_towers_alone.
        "LoRA": Refuses("Tahr does not run adapters of", f"{CHAT_EVENTS}::test_adapters_are_refused"),
        "grammar": Runs((f"{CHATS}::test_grammars_bind_what_is_said_of_images",)),
        "n > 1": Runs((f"{CHAT_EVENTS}::test_choices",)),
        "drafts": Runs((f"{CHAT_EVENTS}::test_guesses_from_the_text", f"{EVENTS}::test_drafts_change_no_text")),
        "sessions": NO_IMAGES,
        "prefix hit": Runs((f"{CHAT_EVENTS}::test_hits_before_inside_and_behind_images",)),
        "preemption": Runs(
            (f"{CHAT_EVENTS}::test_preempted_chats", f"{CHAT_EVENTS}::test_preempted_chats_of_layers_with_states")
        ),
        "snapshot": NO_IMAGES,  # only sessions have snapshots
        "embeddings": Refuses("This model embeds texts alone", f"{CHATS}::test_a_model_of_chats_embeds_no_images"),
        "deterministic": Runs((f"{CHATS}::test_a_batch_is_each_alone", f"{CHAT_EVENTS}::test_chunks_of_a_batch")),
        "two models": Runs((f"{CHAT_EVENTS}::test_two_models_in_turns",)),
        "keys": Runs((f"{CHAT_EVENTS}::test_rows_stay_with_the_salt_they_came_with",)),
    },
    "recordings": {
        "LoRA": Refuses("Tahr does not run adapters of", f"{BESIDE}::test_adapters_are_refused"),
        "grammar": WRITES_DOWN,
        "n > 1": WRITES_DOWN,
        "drafts": Refuses("texts of recordings are not drafted", f"{BESIDE}::test_drafts_are_refused_at_load"),
        "sessions": WRITES_DOWN,
        "prefix hit": Runs(("models/test_whisper.py::test_texts_of_one_recording_share_its_rows",)),
        "preemption": Runs((f"{BESIDE}::test_settings_of_the_engine_change_no_text",)),
        "snapshot": WRITES_DOWN,
        "embeddings": WRITES_DOWN,
        "deterministic": Runs(
            ("models/test_whisper.py::test_a_recording_alone_gives_the_bits_that_it_gives_beside_others",)
        ),
        "two models": Runs((f"{BESIDE}::test_a_model_of_texts_at_work_beside_it",)),
        "keys": Runs((f"{BESIDE}::test_windows_are_shared_under_one_salt_only",)),
    },
    "speech": {
        "LoRA": Refuses("Tahr does not run adapters of", f"{SPOKEN}::test_adapters_are_refused"),
        "grammar": SPEAKS,
        "n > 1": SPEAKS,
        "drafts": Refuses("leave it out", f"{SPOKEN}::test_what_would_do_nothing_is_refused_at_load"),
        "sessions": NO_SPOKEN_SESSION,
        "prefix hit": Runs((f"{SPOKEN}::test_settings_of_the_engine_change_no_frame",)),
        "preemption": Runs(("speech/test_speaking.py::test_a_text_that_lost_its_pages_goes_on_as_before",)),
        "snapshot": NO_SPOKEN_SESSION,  # only sessions have snapshots
        "embeddings": SPEAKS,
        "deterministic": Runs((f"{SPOKEN}::test_frames_of_a_batch_are_those_of_each_alone",)),
        "two models": Runs((f"{SPOKEN}::test_a_model_of_texts_at_work_beside_it",)),
        "keys": Runs((f"{SPOKEN}::test_voices_are_shared_under_one_salt_only",)),
    },
    "pages in tiers": {
        "LoRA": Runs((f"{TIERS}::test_adapters_have_pages_of_their_own",)),
        "grammar": Runs((f"{TIERS}::test_parameters",)),
        "n > 1": Runs((f"{TIERS}::test_choices_of_a_prompt_whose_pages_come",)),
        "drafts": Refuses(
            "a draft model writes to pages after they are full", f"{TIERS}::test_drafts_of_a_model_are_refused"
        ),
        "sessions": Runs((f"{TIERS}::test_a_conversation_goes_on_after_a_restart",)),
        "prefix hit": Runs(
            (
                "tiers/test_tiers.py::test_a_prompt_comes_back_from_a_disk_after_a_restart",
                "tiers/test_tiers.py::test_a_prompt_comes_back_from_the_host",
            )
        ),
        "preemption": Runs(("tiers/test_tiers_of_families.py::test_preempted_texts_find_their_pages_on_the_host",)),
        "snapshot": Runs((f"{TIERS}::test_prefix_files_and_places_find_the_same_text",)),
        "embeddings": Runs((f"{TIERS}::test_hidden_rows_of_a_text_whose_pages_are_kept",)),
        "deterministic": Runs((f"{TIERS}::test_deterministic_replies",)),
        "two models": Runs((f"{TIERS}::test_two_models_on_one_directory",)),
        "keys": Runs(("tiers/test_tiers_of_servers.py::test_keys_have_texts_of_their_own_after_a_restart",)),
    },
    "trained drafters": {
        "LoRA": Runs((f"{TRAINED}::test_adapters",)),
        "grammar": Runs((f"{TRAINED}::test_parameters",)),
        "n > 1": Runs(
            (f"{TRAINED}::test_parameters", f"{TRAINED}::test_choices_go_on_from_the_entries_of_their_prompt")
        ),
        "drafts": Refuses(
            "spec_ngram and spec_draft are both set",
            "library/test_speculation_setup.py::test_two_proposers_are_one_too_many",
        ),
        "sessions": NO_DRAFTER,
        "prefix hit": Runs(
            (f"{TRAINED}::test_guesses_after_a_prefix_that_was_cached", "engine/test_speculation.py::test_equal")
        ),
        "preemption": Runs(
            (
                f"{TRAINED}::test_guesses_of_preempted_texts",
                "engine/test_speculation.py::test_equal_in_tiny_pools_with_chunked_prompts",
            )
        ),
        "snapshot": NO_DRAFTER,
        "embeddings": Runs((f"{TRAINED}::test_vectors_beside_replies",)),
        "deterministic": Runs((f"{TRAINED}::test_batches_are_each_alone",)),
        "two models": Runs((f"{TRAINED}::test_two_models_in_turns",)),
        "keys": Runs((f"{TRAINED}::test_parameters",)),
    },
    "paged weights": {
        "LoRA": Runs((f"{PAGED}::test_adapters",)),
        "grammar": Runs((f"{PAGED}::test_parameters",)),
        "n > 1": Runs((f"{PAGED}::test_parameters",)),
        "drafts": Runs((f"{PAGED}::test_drafts",)),
        "sessions": NO_PAGER,
        "prefix hit": Runs((f"{PAGED}::test_hits_of_the_prefix_cache",)),
        "preemption": Runs((f"{PAGED}::test_preempted_requests",)),
        "snapshot": NO_PAGER,
        "embeddings": Runs((f"{PAGED}::test_vectors",)),
        "deterministic": Runs((f"{PAGED}::test_batches_are_each_alone",)),
        "two models": Runs((f"{PAGED}::test_two_models_in_turns",)),
        "keys": Runs((f"{PAGED}::test_parameters",)),
    },
    "layers that pass through a GPU": {
        "LoRA": Runs((f"{STREAMED}::test_adapters",)),
        "grammar": Runs((f"{STREAMED}::test_parameters",)),
        "n > 1": Runs((f"{STREAMED}::test_parameters",)),
        "drafts": Runs((f"{STREAMED}::test_drafts",)),
        "sessions": NO_PAGER,
        "prefix hit": Runs((f"{STREAMED}::test_hits_of_the_prefix_cache",)),
        "preemption": Runs((f"{STREAMED}::test_preempted_requests",)),
        "snapshot": NO_PAGER,
        "embeddings": Runs((f"{STREAMED}::test_vectors",)),
        "deterministic": Runs((f"{STREAMED}::test_batches_are_each_alone",)),
        "two models": Runs((f"{STREAMED}::test_two_models_in_turns",)),
        "keys": Runs((f"{STREAMED}::test_parameters",)),
    },
    "virtual ranks": {
        "LoRA": Runs((f"{RANKS}::test_adapters",)),
        "grammar": Runs((f"{RANKS}::test_parameters",)),
        "n > 1": Runs((f"{RANKS}::test_parameters",)),
        "drafts": Runs((f"{RANKS}::test_drafts", f"{RANKS}::test_a_draft_model_of_one_rank")),
        "sessions": Runs((f"{RANKS}::test_sessions_and_snapshots",)),
        "prefix hit": Runs((f"{RANKS}::test_hits_of_the_prefix_cache",)),
        "preemption": Runs((f"{RANKS}::test_preempted_requests",)),
        "snapshot": Runs((f"{RANKS}::test_sessions_and_snapshots",)),
        "embeddings": Runs((f"{RANKS}::test_vectors",)),
        "deterministic": Runs((f"{RANKS}::test_batches_are_each_alone",)),
        "two models": Runs((f"{RANKS}::test_two_models_in_turns",)),
        "keys": Runs((f"{RANKS}::test_parameters",)),
    },
    "sleep": {
        "LoRA": Refuses(  # on a CPU nothing of an adapter moves
            "Models with adapters on a GPU do not sleep",
            f"{SLEEP}::test_what_works_or_would_lose_something_does_not_sleep",
        ),
        "grammar": SLEPT,
        "n > 1": SLEPT,
        "drafts": SLEPT,
        "sessions": HELD,
        "prefix hit": Runs((f"{SLEEP}::test_texts_are_the_same_after_a_sleep",)),
        "preemption": SLEPT,
        "snapshot": HELD,  # only sessions have snapshots
        "embeddings": Runs((f"{SLEEP}::test_requests_wake_an_engine_by_themselves",)),
        "deterministic": Runs((f"{SLEEP}::test_texts_are_the_same_after_a_sleep",)),
        "two models": Runs(
            ("server/test_sleeping_models.py::test_a_sleeping_model_leaves_its_part_of_the_budget_to_others",)
        ),
        "keys": Runs(("server/test_sleeping_models.py::test_a_request_that_is_refused_wakes_nobody",)),
    },
    "ranks in processes": {
        "LoRA": Runs((f"{PROCESSES}::test_adapters", f"{FAULTS}::test_choices_grammars_and_adapters_go_on")),
        "grammar": Runs((f"{PROCESSES}::test_parameters", f"{FAULTS}::test_choices_grammars_and_adapters_go_on")),
        "n > 1": Runs((f"{PROCESSES}::test_parameters", f"{FAULTS}::test_choices_grammars_and_adapters_go_on")),
        "drafts": Runs((f"{PROCESSES}::test_guesses_and_chunks", f"{PROCESSES}::test_drafts_of_a_model_are_refused")),
        "sessions": NO_PAGES,
        "prefix hit": Runs((f"{PROCESSES}::test_hits_of_the_prefix_cache",)),
        "preemption": Runs((f"{PROCESSES}::test_preempted_requests",)),
        "snapshot": NO_PAGES,
        "embeddings": Runs((f"{PROCESSES}::test_vectors", f"{FAULTS}::test_vectors_go_on")),
        "deterministic": Runs((f"{PROCESSES}::test_a_batch_is_each_alone",)),
        "two models": Runs((f"{PROCESSES}::test_two_models_in_turns",)),
        "keys": Runs((f"{PROCESSES}::test_parameters",)),
    },
}

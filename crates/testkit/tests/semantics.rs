//! Every kernel semantic that programs rely on: the same program text on plain TCP and under Ropeway, transcripts compared.
//!
//! A row is a case of a program in `crates/testkit/programs/semantics`, with what the statistics must say of the carrier
//! once the connection was warmed up: [`Expect::Shm`] unless the row names something else. `calm`: not under chaos.

use ropeway_testkit::semantics::{Chaos, Expect, Theme};

macro_rules! expectation {
    () => {
        Expect::Shm
    };
    ($expect:ident) => {
        Expect::$expect
    };
}

macro_rules! chaos {
    () => {
        Chaos::Too
    };
    (calm) => {
        Chaos::Never
    };
}

/// One module per theme, one test per case, and one test that no case of the program is missing here.
macro_rules! semantics {
    ($($(#[$doc:meta])* $theme:ident { $($case:ident $(: $expect:ident)? $($calm:ident)?,)* })*) => {$(
        $(#[$doc])*
        mod $theme {
            use super::*;

            #[test]
            fn every_case_has_its_test() {
                assert_eq!(Theme::new(stringify!($theme)).cases(), [$(stringify!($case)),*]);
            }

            $(#[test]
            fn $case() {
                Theme::new(stringify!($theme)).compare(stringify!($case), expectation!($($expect)?), chaos!($($calm)?));
            })*
        }
    )*};
}

semantics! {
    /// How bytes come through: partial reads and writes, flags of recv, vectors, counts of what waits.
    stream {
        partial_read,
        many_sends_one_read,
        every_size,
        short_messages_go_whole,
        partial_write: ShmAndTcp calm,
        blocking_write_of_more_than_fits: ShmAndTcp,
        peek,
        peek_waits_for_data_and_for_the_end,
        waitall,
        waitall_large,
        waitall_nonblocking,
        peek_waitall,
        dontwait,
        trunc_discards,
        trunc_finds_the_end: ShmSomewhere,
        trunc_finds_a_reset: ShmSomewhere,
        zero_length,
        fionread,
        siocoutq,
        peek_and_counts_across_carriers,
        cork,
    }

    /// Vectors and messages, their limits and fields; what bad pointers, descriptors and flags give.
    messages {
        vectors,
        as_many_vectors_as_there_may_be,
        many_messages_at_once,
        many_messages_in_part: ShmAndTcp calm,
        many_messages_before_a_reset,
        time_of_many_messages,
        fields_of_a_message,
        bytes_left,
        bytes_left_after_shutdown_of_reading,
        bytes_left_of_a_closed_connection,
        bytes_left_by_the_listener,
        control_data_sent: ShmAndTcp,
        times_of_arrival: ShmAndTcp,
        times_of_arrival_by_the_listener: TcpOnly,
        bad_pointers,
        buffers_that_end_in_a_hole,
        lists_of_which_a_part_is_not_there,
        messages_of_which_some_are_not_there,
        bad_descriptors,
        calls_for_files_only,
        flags_of_single_calls: ShmAndTcp,
        unusual_flags,
        lengths_beyond_reason,
        options_and_names,
        peek_offset: ShmAndTcp,
    }

    /// Whether a call waits, for how long and for how much: O_NONBLOCK in all its spellings, time-outs, SO_RCVLOWAT.
    waiting {
        nonblocking_by_fcntl,
        nonblocking_by_ioctl,
        nonblocking_by_ioctl_while_warm,
        nonblocking_while_a_thread_waits: ShmAndTcp,
        nonblocking_through_a_duplicate,
        nonblocking_from_birth,
        receive_timeout,
        peek_timeout_across_carriers: ShmAndTcp,
        send_timeout: ShmAndTcp calm,
        negative_timeouts: ShmAndTcp calm,
        room_after_a_send_timeout: ShmAndTcp calm,
        room_after_a_negative_send_timeout: ShmAndTcp calm,
        negative_timeout_by_the_listener,
        low_water_mark,
        low_water_mark_lowered_under_a_sleeper,
        large_low_water_mark,
        both_send_first: ShmAndTcp,
        both_send_first_in_one_call: ShmAndTcp,
        both_send_first_without_blocking: ShmAndTcp,
        sends_that_try_again_without_waiting: ShmAndTcp,
        slow_reader: ShmAndTcp,
        slow_writer,
    }

    /// How a connection ends: half-close, end of file, reset, errors after the peer is gone, in the order TCP gives them.
    ends {
        half_close,
        much_after_half_close: ShmAndTcp,
        end_after_all_was_read,
        end_found_without_waiting,
        exit_found_without_waiting,
        end_while_the_peer_waits,
        send_after_own_shutdown,
        sigpipe_kills,
        send_after_the_peer_closed,
        close_with_unread_data,
        close_with_partly_read_data,
        reset_after_data,
        last_words_before_a_close_with_unread_data: ShmSomewhere,
        answers_acknowledge_questions: ShmSomewhere,
        close_with_unread_data_while_the_peer_waits,
        reset_by_linger,
        reset_while_the_peer_has_some_of_what_it_waits_for,
        reset_while_the_peer_waits,
        reset_while_the_peer_sends: ShmAndTcp,
        linger_waits_for_delivery,
        exit_right_after_sending,
        shutdown_in_all_orders,
        shutdown_of_reading,
        sending_after_shutdown_of_reading,
        more_than_fits_after_shutdown_of_reading: ShmAndTcp,
        end_of_own_reading_beside_unread_bytes: ShmAndTcp,
        both_close_at_once,
        killed_peer,
        killed_peer_with_unread_data,
        killed_peer_after_its_half_close,
        killed_peer_after_own_half_close,
        killed_peer_after_own_half_close_seen_by_poll,
        killed_peer_after_own_half_close_seen_by_epoll,
        killed_peer_while_waiting_for_it,
        killed_peer_while_sending_to_it: ShmAndTcp,
    }

    /// How connections begin: non-blocking connect and its errors, families, many at once, unusual pairs.
    opening {
        nonblocking_connect,
        refused: Either,
        refused_then_accepted,
        unconnected: Either,
        ipv6,
        ipv4_mapped,
        many_short_connections: Either,
        many_connections_at_once,
        self_connect: TcpOnly,
        both_ends_in_one_process,
        same_addresses_again,
        disconnect_and_connect_again: ShmAndTcp,
        send_that_connects,
    }

    /// Urgent data: the mark, the byte beside the stream, SIGURG. A carrier that cannot have it must give the connection back to TCP.
    urgent {
        byte_beside_the_stream: ShmAndTcp,
        byte_in_the_stream: ShmAndTcp,
        mark_behind_other_bytes: ShmAndTcp,
        mark_behind_other_bytes_in_the_stream: ShmAndTcp,
        mark_behind_other_bytes_for_who_waits_for_all: ShmAndTcp,
        mark_that_comes_to_who_waits_for_all: ShmAndTcp,
        mark_behind_other_bytes_that_are_peeked: ShmAndTcp,
        mark_right_behind_bytes_that_are_peeked: ShmAndTcp,
        second_mark: ShmAndTcp,
        signal_and_readiness: ShmAndTcp,
        between_much_other_traffic: ShmAndTcp,
    }

    /// Descriptor numbers: duplicates, reuse after close, numbers above 1024, replacement of one file by another.
    numbers {
        duplicate_by_dup,
        duplicate_by_dup2,
        duplicate_by_dup3,
        duplicate_by_fcntl,
        duplicate_by_fcntl_closed_at_exec,
        duplicate_by_system_call,
        duplicate_by_pidfd,
        replaced_by_a_pipe,
        replaced_by_another_connection,
        number_used_again,
        number_used_again_at_once,
        number_above_1024,
        select_of_as_many_as_there_may_be,
        select_takes_no_number_from_another_thread calm,
        none_may_be_opened: ShmAndTcp,
        one_may_be_opened: ShmAndTcp,
        entries_for_all_that_may_be_opened,
        ranges,
        closefrom_some_number,
        as_standard_input_and_output: ShmAndTcp,
    }

    /// One socket, many threads: sharing both directions, closing under a waiter, cancelling one.
    threads {
        many_writers,
        many_readers,
        many_writers_and_readers,
        both_directions_with_many_threads: ShmAndTcp,
        many_threads_without_blocking: ShmAndTcp,
        one_thread_for_each_direction: ShmAndTcp,
        closed_while_a_thread_receives,
        number_given_away_while_a_thread_receives,
        next_connection_while_a_thread_receives_on_a_closed_one,
        next_connection_while_a_closed_one_ends,
        next_connection_while_a_thread_receives_messages_on_a_closed_one,
        next_connection_while_a_thread_sends_a_file_on_a_closed_one: ShmAndTcp,
        closed_while_a_thread_polls,
        closed_while_a_thread_polls_in_vain,
        closed_while_a_thread_selects,
        number_given_away_while_a_thread_polls,
        closed_while_a_thread_waits_on_a_set,
        closed_while_a_thread_sends,
        number_given_away_while_a_thread_sends,
        forked_while_a_thread_gives_a_number_away,
        shut_down_while_a_thread_receives,
        shut_down_both_ways_while_a_thread_polls,
        shut_down_while_a_thread_sends: ShmAndTcp,
        sending_while_another_thread_receives,
        cancelled_while_receiving,
        wait_after_many_cancellations,
        cancelled_while_accepting,
        cancelled_while_sending: ShmAndTcp,
        cancellation_switched_off,
        stdio_in_a_thread_with_a_small_stack: ShmAndTcp,
    }

    /// One connection, several processes: fork with sharing, accept-fork-close, what children and their deaths do to the parent's socket.
    processes {
        child_and_parent_write,
        child_and_parent_read,
        children_write_at_once: ShmSomewhere,
        child_leaves_without_touching,
        child_is_killed,
        parent_leaves_child_goes_on,
        daemon_goes_on,
        last_owner_closes,
        accept_fork_close: ShmSomewhere,
        shared_then_alone: ShmAndTcp,
        other_ways_to_fork,
        child_shares_the_descriptors: ShmAndTcp,
        child_shares_the_memory: ShmAndTcp,
        fork_beside_a_waiting_thread,
        many_generations,
    }

    /// Other programs beside or in place of this one: exec that keeps a connection, spawn, popen; descriptors given away in messages.
    programs {
        exec_of_a_program: ShmSomewhere,
        exec_of_a_static_program: ShmSomewhere,
        fork_and_exec_of_a_program: ShmAndTcp,
        fork_and_exec_of_a_static_program: ShmAndTcp,
        spawn_of_a_program: ShmAndTcp,
        spawn_of_a_static_program: ShmAndTcp,
        vfork_and_exec_of_a_program: ShmAndTcp,
        vfork_and_exec_of_a_static_program: ShmAndTcp,
        a_static_program_that_sends_first: ShmSomewhere,
        exec_that_fails,
        exec_by_a_name_that_fails,
        closed_by_exec: ShmSomewhere,
        other_programs_beside: ShmAndTcp,
        read_beside_a_child_that_becomes_a_program: ShmAndTcp,
        inherited_by_a_background_program: ShmAndTcp,
        given_away: ShmSomewhere,
        given_and_kept: ShmSomewhere,
        given_away_early: Either,
        in_flight_and_held_by_nobody: ShmAndTcp,
        lost_in_flight: ShmAndTcp,
        listener_given_away: ShmSomewhere,
    }

    /// What poll, ppoll, select and pselect say of a connection in every state, and what wakes them. Sets of epoll have files of their own.
    readiness {
        states_by_poll: ShmAndTcp calm,
        states_by_ppoll: ShmAndTcp calm,
        states_by_select: ShmAndTcp calm,
        states_by_pselect: ShmAndTcp calm,
        states_by_poll_after_recv: ShmAndTcp calm,
        reset_seen_by_poll,
        reset_seen_by_select,
        room_that_never_comes: ShmAndTcp calm,
        room_beside_a_short_message,
        several_descriptors,
        woken_by_something_else,
        sixteen_connections,
        wrong_arguments_and_times,
    }

    /// What an epoll set reports of one connection: level, edge, oneshot, and the events of its end.
    edges {
        level,
        edge,
        edge_of_both_directions: ShmAndTcp calm,
        edge_for_output_only: ShmAndTcp calm,
        edge_behind_a_splice: ShmAndTcp calm,
        oneshot,
        output_level: ShmAndTcp calm,
        end_of_the_peer,
        end_while_asleep calm,
        reset_while_asleep,
        low_water_mark_in_a_set,
        wrong_operations,
        times_to_wait,
        longest_time_to_wait,
    }

    /// Epoll sets with several members, several users, several owners: nested, shared by threads, inherited by fork, members that go away.
    sets {
        made_before_the_connection,
        made_after_much_traffic,
        several_members,
        nested,
        set_in_a_poll,
        member_closed,
        member_closed_but_duplicated,
        both_numbers_in_the_set,
        in_two_sets,
        oneshot_shared_by_threads,
        edge_shared_by_threads,
        exclusive,
        changed_under_a_sleeper,
        closed_under_a_sleeper,
        oneshot_added_under_a_look,
        inherited_by_fork,
        changed_by_a_child,
    }

    /// Signals during every call that waits: interrupted, restarted, handlers that use the socket or never return.
    signals {
        readers_interrupted,
        readers_restarted,
        readers_with_a_timeout_restarted,
        writers_interrupted: ShmAndTcp calm,
        writers_restarted: ShmAndTcp calm,
        waits_for_a_pipe_interrupted,
        waits_for_a_pipe_restarted,
        accept_interrupted: Either,
        waitall_interrupted,
        large_send_interrupted: ShmAndTcp calm,
    }

    /// Signal handlers that use the connection they interrupted or never return; masks, stops, and signals without end.
    handlers {
        handler_sends,
        handler_sends_while_sending: ShmAndTcp calm,
        handler_receives,
        handler_jumps_out,
        wait_after_many_jumps,
        handler_sends_while_polling_for_room: ShmAndTcp,
        handler_jumps_out_of_polling_for_room: ShmAndTcp,
        ignored_and_blocked_signals,
        mask_of_the_wait,
        mask_of_a_look,
        stopped_and_continued,
        handlers_read_back,
        handled_once_in_the_group: ShmAndTcp,
        ignored_by_the_group: ShmAndTcp,
        storm_of_signals,
        storm_of_restarting_signals,
    }

    /// Roads to a connection other than send and recv: sendfile, splice, tee, stdio, asynchronous I/O.
    files {
        sendfile_with_an_offset,
        sendfile_at_the_position,
        sendfile_of_much: ShmAndTcp,
        sendfile_without_blocking: ShmAndTcp,
        sendfile_between_sends,
        sendfile_that_is_refused,
        sendfile_into_a_pipe: ShmAndTcp,
        in_a_thread_with_the_smallest_stack: ShmAndTcp,
        splice_out_of_a_pipe: ShmAndTcp,
        splice_into_a_pipe: ShmAndTcp,
        splice_that_is_refused,
        splice_before_a_reset,
        relay_by_splice: ShmAndTcp,
        stdio: ShmAndTcp,
        stdio_in_blocks: ShmAndTcp,
        asynchronous: ShmAndTcp,
        asynchronous_by_the_kernel: ShmAndTcp,
        asynchronous_by_the_kernel_through_its_library: ShmAndTcp,
    }
}

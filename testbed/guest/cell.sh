# What a cell does, in whatever kernel: docs/lab-internals.md sections 1 and 6.
#
# Read by process 1 of the guest (init) and by that of a cell on a real host (host-init), which
# mount what is needed, define load_modules and trace_room, and say what becomes of /out at the end. Nothing here
# may assume that the machine is ours. Run by dash, whose builtins cost a hundredth of a fork. The
# order of things is the point of this file: between AIRLAB-START and AIRLAB-END nothing runs but
# the experiment.
# shellcheck shell=sh

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
T=/sys/kernel/tracing

say() {
	echo "$*" >/dev/console
}

say_time() {
	read -r up _ </proc/uptime
	say "$1 $up"
}

# The first failure counts; what comes after it may only be its consequence.
rc=0
fail() {
	say "AIRLAB-FAIL $1: $2"
	[ "$rc" = 0 ] && rc=$1
	return 1
}

# What a failing program said first and last: the cause stands in one of the two.
gist() {
	first='' last=''
	[ -r "$1" ] || return 0
	while read -r line; do
		first=${first:-$line} last=$line
	done <"$1"
	[ "$first" = "$last" ] || first="$first ... $last"
	echo "$first"
}

# step NAME COMMAND...: its messages go to /out/proc/NAME.log, their gist to the console.
step() {
	name=$1
	shift
	"$@" >"/out/proc/$name.log" 2>&1 && return
	status=$?
	fail "$name" "status $status: $(gist "/out/proc/$name.log")"
}

read_env() {
	TRACE=0 TRACE_KB=4096 CAPTURE='' NODES='' CHANNELS='' MODULES=''
	BEFORE_END_US=0 MAIN_END_US=0 AFTER_END_US=0
	[ -r /lab/env ] || return
	# Lines are KEY=value, not shell: a value may hold blanks.
	while IFS='=' read -r key value; do
		value=${value#\"}
		value=${value%\"}
		case $key in
		TRACE) TRACE=$value ;;
		TRACE_KB) TRACE_KB=$value ;;
		CAPTURE) CAPTURE=$value ;;
		NODES) NODES=$value ;;
		CHANNELS) CHANNELS=$value ;;
		MODULES) MODULES=$value ;;
		BEFORE_END_US) BEFORE_END_US=$value ;;
		MAIN_END_US) MAIN_END_US=$value ;;
		AFTER_END_US) AFTER_END_US=$value ;;
		esac
	done </lab/env
}

setup() {
	load_modules || return
	[ -r /lab/setup.sh ] || return 0
	step setup sh -e /lab/setup.sh
}

# counters 0|1: what the kernel has counted before and after the experiment.
counters() {
	set -- "$1" /proc/stat "/out/stat$1"
	n=$1
	shift
	for node in $NODES; do
		set -- "$@" --netns "$node" /proc/net/netstat,/proc/net/snmp "/out/nstat$n.$node"
		# TCP-Cherry counts what the stack takes for retransmissions.
		[ ! -e /proc/net/tcp_cherry ] || set -- "$@" /proc/net/tcp_cherry "/out/cherry$n.$node"
	done
	step "counters$n" airship copy "$@"
	for node in $NODES; do
		tc -s -j -n "$node" qdisc show >"/out/tc$n.$node.json" 2>"/out/proc/tc$n.log" ||
			fail "counters$n" "$node: $(gist "/out/proc/tc$n.log")"
	done
}

capture_on() {
	[ -n "$CAPTURE" ] || return 0
	ns=${CAPTURE%%:*} dev=${CAPTURE#*:}
	snaplen=${dev##*:} dev=${dev%:*}
	# No promiscuous mode, no names, no change of user; blocks are handed over once a second, so
	# that the ring wakes tcpdump rarely. The ring must hold what comes meanwhile.
	ip netns exec "$ns" tcpdump -i "$dev" -s "$snaplen" -B 32768 -p -n -Z root \
		--time-stamp-precision=nano -w /out/cap.pcap 2>/out/proc/tcpdump.err &
	tcpdump=$!
	while :; do
		case $(gist /out/proc/tcpdump.err) in *listening*) return 0 ;; esac
		kill -0 $tcpdump 2>/dev/null || break
		sleep 0.02
	done
	tcpdump=
	fail capture "$(gist /out/proc/tcpdump.err)"
}

capture_off() {
	[ -n "$tcpdump" ] || return 0
	# The ring hands over its last block a second after it was begun.
	sleep 2
	kill -INT "$tcpdump"
	wait "$tcpdump" || fail capture "$(gist /out/proc/tcpdump.err)"
	while read -r count what; do
		case $what in
		'packets dropped by kernel') [ "$count" = 0 ] || fail capture "$count $what" ;;
		esac
	done </out/proc/tcpdump.err
}

trace_setup() {
	[ "$TRACE" = 1 ] || return 0
	echo 0 >$T/tracing_on
	echo mono >$T/trace_clock
	trace_room
	# Names of tasks would cost a hook in every switch of tasks.
	echo 0 >$T/options/record-cmd
	set -- $T/events/header_page /out/trace.formats/header_page
	mkdir -p /out/trace.formats
	tab=$(printf '\t')
	probes || return
	while IFS="$tab" read -r event filter; do
		[ -n "$event" ] || continue
		dir=$T/events/$event
		[ -d "$dir" ] || { fail trace "no event $event"; return; }
		if [ -n "$filter" ]; then
			echo "$filter" >"$dir/filter" || { fail trace "$event: filter $filter"; return; }
		fi
		echo 1 >"$dir/enable" || { fail trace "$event: cannot be enabled"; return; }
		set -- "$@" "$dir/format" "/out/trace.formats/${event%/*}.${event#*/}"
	done </lab/trace.events
	triggers || return
	[ -r /lab/trace.triggers ] &&
		set -- "$@" $T/events/ftrace/kernel_stack/format /out/trace.formats/ftrace.kernel_stack
	step trace airship copy "$@"
}

# Lines for kprobe_events, whose events trace.events may name.
probes() {
	[ -r /lab/kprobe_events ] || return 0
	while read -r line; do
		echo "$line" >>$T/kprobe_events || { fail trace "kprobe $line"; return; }
	done </lab/kprobe_events
}

# system/event<TAB>trigger: what else happens at an event, as `stacktrace`.
triggers() {
	[ -r /lab/trace.triggers ] || return 0
	while IFS="$tab" read -r event trigger; do
		echo "$trigger" >"$T/events/$event/trigger" || { fail trace "$event: $trigger"; return; }
	done </lab/trace.triggers
}

trace_save() {
	[ "$TRACE" = 1 ] || return 0
	echo 0 >$T/events/enable
	# A buffer a processor; that of processor 0 has no number in its name.
	for buffer in $T/per_cpu/cpu*; do
		number=.${buffer##*/cpu}
		[ "$number" = .0 ] && number=
		# First the counters: reading the pages empties them.
		step trace airship copy "$buffer/stats" "/out/trace.stats$number"
		step trace airship rawtrace "$buffer/trace_pipe_raw" "/out/trace.raw$number"
	done
}

# schedule NAME END_US ARGUMENTS...
schedule() {
	name=$1 end=$2
	shift 2
	[ -r "/lab/$name.tsv" ] || return 0
	step "$name" airsched "/lab/$name.tsv" --end-us "$end" --lead-ms 50 --progress-s 10 "$@"
}

experiment() {
	capture_on && trace_setup || return
	[ "$TRACE" = 1 ] && echo 1 >$T/tracing_on
	say_time AIRLAB-START
	schedule main "$MAIN_END_US" --t0-file /out/t0 --tend-file /out/tend
	say_time AIRLAB-END
	[ "$TRACE" = 1 ] && echo 0 >$T/tracing_on
	[ "$rc" = 0 ]
}

channels() {
	for channel in $CHANNELS; do
		airchan stats --name "$channel" >"/out/chan.$channel.json" 2>/out/proc/airchan.log ||
			fail channels "$(gist /out/proc/airchan.log)"
	done
}

describe() {
	set --
	for node in $NODES; do
		set -- "$@" --netns "$node" "/out/sysctl.$node"
	done
	[ $# = 0 ] || step sysctl airship sysctl "$@"
	for dir in /sys/module/*; do
		# Only what was loaded has a state; what is built in has none.
		[ -e "$dir/initstate" ] || continue
		srcversion=- version=-
		[ -r "$dir/srcversion" ] && read -r srcversion <"$dir/srcversion"
		[ -r "$dir/version" ] && read -r version <"$dir/version"
		echo "${dir##*/} $srcversion $version"
	done >/out/modules
	# Names for the addresses in stacks.
	[ -r /lab/trace.triggers ] && grep ' [tTwW] ' /proc/kallsyms >/out/kallsyms
	uname -a >/out/uname
	while read -r key value; do
		[ "$key" = Cpus_allowed_list: ] && echo "$value" >/out/cpus
	done </proc/self/status
}

cell() {
	schedule before "$BEFORE_END_US" --t0-file /out/t0.before || return
	counters 0
	experiment
	capture_off
	counters 1
	channels
	trace_save
	[ "$rc" = 0 ] && schedule after "$AFTER_END_US" --t0-file /out/t0.after
}

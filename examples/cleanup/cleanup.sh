#!/bin/sh
# Looks after the queues that drip keeps for a work queue. It needs rabbitmqctl, on the broker's host or in its
# container; RABBITMQ_VHOST names another virtual host than "/".
#
#   cleanup.sh show orders            all of drip's queues, with their messages
#   cleanup.sh limit orders DAYS MAX  keep new dead letters for DAYS days, and MAX of them all: the oldest go first
#   cleanup.sh tidy orders            delete the delay queues without messages; they are declared again when needed
#   cleanup.sh remove orders          delete all of drip's queues, for good; not while a message is in one of them
#
# Stop the consumers before tidy and remove, which take ten seconds before they begin.
set -eu

usage() {
	sed -n 's/^# \{0,1\}//; 2,10p' "$0" >&2
	exit 2
}
[ $# -ge 2 ] || usage
queue=$2

ctl() { rabbitmqctl --quiet --vhost "${RABBITMQ_VHOST:-/}" "$@"; }

# Lines of a name, a tab and the messages of each of drip's queues, those in hand and those that are being dead-lettered
# included.
queues() {
	ctl list_queues --no-table-headers name messages |
		awk -F '\t' -v prefix="$queue.drip." 'index($1, prefix) == 1'
}

# What the broker says of quorum queues it counts every five seconds, and all is 0 until it does so after its start. So
# nothing is deleted before that is over, and nothing while a consumer might postpone a message.
settle() {
	idle
	sleep 10
	idle
}

idle() {
	busy=$(ctl list_queues --no-table-headers name consumers |
		awk -F '\t' -v queue="$queue" '($1 == queue || $1 == queue ".drip.due") && $2 != 0')
	if [ -n "$busy" ]; then
		printf 'there are consumers:\n%s\n' "$busy" >&2
		exit 1
	fi
}

# Quorum queues know no --if-empty.
delete_all() {
	while IFS='	' read -r name _; do
		ctl delete_queue "$name" </dev/null
	done
}

case $1 in
show)
	queues
	;;
limit)
	[ $# -eq 4 ] || usage
	ctl set_policy --apply-to queues "$queue.drip.dead" "^$(printf %s "$queue.drip.dead" | sed 's/[][\.*^$(){}?+|/]/\\&/g')\$" \
		"{\"message-ttl\": $(($3 * 24 * 60 * 60 * 1000)), \"max-length\": $4}"
	;;
tidy)
	settle
	queues | awk -F '\t' -v prefix="$queue.drip." '$2 == "0" &&
		substr($1, length(prefix) + 1) ~ /^(due\.)?v1(few)?\.[0-9]+m?s\.[0-9][0-9]$/' | delete_all
	;;
remove)
	settle
	left=$(queues | awk -F '\t' '$2 != "0"')
	if [ -n "$left" ]; then
		printf 'there are messages left:\n%s\n' "$left" >&2
		exit 1
	fi
	queues | delete_all
	;;
*)
	usage
	;;
esac

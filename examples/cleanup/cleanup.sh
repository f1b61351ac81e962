#!/bin/sh
# Looks after the queues that drip keeps for a work queue. It needs rabbitmqctl, on the broker's host or in its
# container; RABBITMQ_VHOST names another virtual host than "/".
#
#   cleanup.sh show orders            all of drip's queues, with their messages
#   cleanup.sh tidy orders            delete the delay queues without messages; they are declared again when needed
#   cleanup.sh limit orders DAYS MAX  keep dead letters for DAYS days, and MAX of them at most: the oldest go first
#   cleanup.sh remove orders          delete all of drip's queues, for good; not while a message is in one of them
set -eu

usage() {
	sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2
	exit 2
}
[ $# -ge 2 ] || usage
queue=$2

ctl() { rabbitmqctl --quiet --vhost "${RABBITMQ_VHOST:-/}" "$@"; }

# Lines of a name, a tab and the messages ready and in hand of each queue that begins with $1. What a quorum queue is
# just dead-lettering is in neither number, so stop the consumers, and wait a few seconds, before you rely on a 0.
queues() {
	ctl list_queues --no-table-headers name messages |
		awk -F '\t' -v prefix="$1" 'index($1, prefix) == 1'
}

# Quorum queues know no --if-empty.
delete_all() {
	while IFS='	' read -r name _; do
		ctl delete_queue "$name" </dev/null
	done
}

case $1 in
show)
	queues "$queue.drip."
	;;
tidy)
	for prefix in "$queue.drip.due." "$queue.drip.250ms." "$queue.drip.4s." "$queue.drip.64s." "$queue.drip.1024s."; do
		queues "$prefix" | awk -F '\t' '$2 == 0' | delete_all
	done
	;;
limit)
	[ $# -eq 4 ] || usage
	ctl set_policy --apply-to queues "$queue.drip.dead" "^$(printf %s "$queue.drip.dead" | sed 's/[][\.*^$(){}?+|/]/\\&/g')\$" \
		"{\"message-ttl\": $(($3 * 24 * 60 * 60 * 1000)), \"max-length\": $4}"
	;;
remove)
	left=$(queues "$queue.drip." | awk -F '\t' '$2 > 0')
	if [ -n "$left" ]; then
		printf 'there are messages left:\n%s\n' "$left" >&2
		exit 1
	fi
	queues "$queue.drip." | delete_all
	;;
*)
	usage
	;;
esac

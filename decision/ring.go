package decision

const (
	// Grains is the number of grains in a calendar.
	Grains = 1024

	// Places is the number of places in a Ring: those of the grains, and two for each class of each of two minutes.
	Places = Grains + 4*classes
)

// mostBooked is the most that a place holds.
const mostBooked = 1<<24 - 1

// Ring holds the booked units of each grain of a calendar. The place of a grain is its number modulo Grains. The places
// behind them hold the backlogs of the entities. Ring decides nothing. The zero Ring is empty.
type Ring struct {
	places []byte // three for each place, the lowest first; none if nothing was booked
}

// At returns the number at a place.
func (r *Ring) At(place int64) int64 {
	if len(r.places) == 0 {
		return 0
	}
	at := r.places[3*place : 3*place+3]
	return int64(at[0]) | int64(at[1])<<8 | int64(at[2])<<16
}

// Put sets the number at a place. It is at least 0 and below 2^24.
func (r *Ring) Put(place, units int64) {
	if len(r.places) == 0 {
		if units == 0 {
			return
		}
		r.places = append(r.places[:0], make([]byte, 3*Places)...)
	}
	at := r.places[3*place : 3*place+3]
	at[0], at[1], at[2] = byte(units), byte(units>>8), byte(units>>16)
}

// Clear sets all to 0.
func (r *Ring) Clear() { r.places = r.places[:0] }

// Bytes returns the numbers of all places, three bytes each, the lowest first; none if nothing was booked. Do not
// change the bytes: they belong to the Ring.
func (r *Ring) Bytes() []byte { return r.places }

// SetBytes sets the Ring from the result of Bytes. It returns false, and changes nothing, if b is no such result.
func (r *Ring) SetBytes(b []byte) bool {
	if len(b) != 0 && len(b) != 3*Places {
		return false
	}
	r.places = append(r.places[:0], b...)
	return true
}

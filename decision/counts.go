package decision

// Counts is a list of numbers below 2^24. A number behind its end is 0. Counts decides nothing. The zero Counts is empty.
type Counts struct {
	bytes []byte // three for each number, the lowest first; the last three are not all 0
}

// At returns the number at a place.
func (c *Counts) At(place int64) int64 {
	if 3*place >= int64(len(c.bytes)) {
		return 0
	}
	b := c.bytes[3*place : 3*place+3]
	return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16
}

// Sum returns the sum of the numbers from a place to before another one. Each counts at most as much as most.
func (c *Counts) Sum(first, end, most int64) (sum int64) {
	for place := first; place < min(end, int64(len(c.bytes)/3)); place++ {
		sum += min(c.At(place), most)
	}
	return sum
}

// Put sets the number at a place. It is at least 0 and below 2^24.
func (c *Counts) Put(place, n int64) {
	for int64(len(c.bytes)) <= 3*place {
		c.bytes = append(c.bytes, 0, 0, 0)
	}
	b := c.bytes[3*place:]
	b[0], b[1], b[2] = byte(n), byte(n>>8), byte(n>>16)
	for end := len(c.bytes); end > 0 && c.bytes[end-3]|c.bytes[end-2]|c.bytes[end-1] == 0; end -= 3 { // no zeros at the end
		c.bytes = c.bytes[:end-3]
	}
}

// Drop removes the first n numbers. The others move to the front.
func (c *Counts) Drop(n int64) {
	rest := c.bytes[min(3*n, int64(len(c.bytes))):]
	c.bytes = append(c.bytes[:0], rest...)
}

// Clear removes all numbers.
func (c *Counts) Clear() { c.bytes = c.bytes[:0] }

// Bytes returns the numbers, three bytes each, the lowest first. Do not change them: they belong to the Counts.
func (c *Counts) Bytes() []byte { return c.bytes }

// SetBytes sets the Counts from the result of Bytes. It returns false, and changes nothing, if b is no such result.
func (c *Counts) SetBytes(b []byte) bool {
	if n := len(b); n%3 != 0 || n > 0 && b[n-3]|b[n-2]|b[n-1] == 0 {
		return false
	}
	c.bytes = append(c.bytes[:0], b...)
	return true
}

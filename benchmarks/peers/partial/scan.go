// Package partial answers reviews with a decoder written for them: it reads the few fields that matter and steps over
// the rest, counting brackets and looking for the ends of strings.
package partial

import (
	"bytes"
	"encoding/json"
	"errors"
)

var errJSON = errors.New("not the JSON of a review")

type scanner struct {
	data []byte
	at   int
}

func (s *scanner) next() byte {
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// null steps over a null, if there is one.
func (s *scanner) null() bool {
	if s.next() == 'n' && bytes.HasPrefix(s.data[s.at:], []byte("null")) {
		s.at += 4
		return true
	}
	return false
}

// raw is a string as it stands between its quotes.
func (s *scanner) raw() ([]byte, error) {
	if !s.take('"') {
		return nil, errJSON
	}
	start := s.at
	if err := s.closeString(); err != nil {
		return nil, err
	}
	return s.data[start : s.at-1], nil
}

// closeString goes behind the quote that ends a string.
func (s *scanner) closeString() error {
	for {
		end := bytes.IndexByte(s.data[s.at:], '"')
		if end < 0 {
			return errJSON
		}
		quote := s.at + end
		s.at = quote + 1
		back := quote
		for s.data[back-1] == '\\' {
			back--
		}
		if (quote-back)%2 == 0 {
			return nil
		}
	}
}

func (s *scanner) text() (string, error) {
	if s.null() {
		return "", nil
	}
	raw, err := s.raw()
	if err != nil || bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), err
	}
	var unescaped string
	err = json.Unmarshal(s.data[s.at-len(raw)-2:s.at], &unescaped)
	return unescaped, err
}

// object calls member for every key, which steps over or reads its value; false when it is null.
func (s *scanner) object(member func(key []byte) error) (bool, error) {
	if s.null() {
		return false, nil
	}
	if !s.take('{') {
		return false, errJSON
	}
	if s.take('}') {
		return true, nil
	}
	for {
		key, err := s.raw()
		if err != nil {
			return false, err
		}
		if !s.take(':') {
			return false, errJSON
		}
		if err := member(key); err != nil {
			return false, err
		}
		if s.take('}') {
			return true, nil
		}
		if !s.take(',') {
			return false, errJSON
		}
	}
}

// array calls element for every element.
func (s *scanner) array(element func() error) error {
	if s.null() {
		return nil
	}
	if !s.take('[') {
		return errJSON
	}
	if s.take(']') {
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return errJSON
		}
	}
}

// skip steps over a value.
func (s *scanner) skip() error {
	depth := 0
	for s.at < len(s.data) {
		c := s.data[s.at]
		switch c {
		case '"':
			s.at++
			if err := s.closeString(); err != nil {
				return err
			}
			if depth == 0 {
				return nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return nil // the end of what the value was in: it was a number or a word
			}
			if depth--; depth == 0 {
				s.at++
				return nil
			}
		case ',':
			if depth == 0 {
				return nil
			}
		}
		s.at++
	}
	return errJSON
}
